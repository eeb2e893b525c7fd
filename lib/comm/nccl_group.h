// A process group over NCCL, for tensors on devices of which each rank has its own. Operations happen on streams beside
// the devices' own, behind what the device's queue held when they were posted; Handle::wait() holds up the queue and
// not the host. NCCL adds in an order of its own.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "lib/comm/device_groups.h"
#include "lib/comm/nccl_channel.h"

namespace quintet::comm {

// Collectives share an NCCL communicator. Messages have one for each channel and direction between two members, so that
// they wait for nothing but their counterparts, in whatever order ranks post them.
class NcclGroup : public ProcessGroup {
 public:
  NcclGroup(const ProcessGroup& group, const GroupPlace& place, device::WorkQueue& queue);

 protected:
  Handle do_all_reduce(Tensor tensor, Reduction reduction, std::string_view what) override;
  Handle do_reduce_scatter(Tensor input, std::span<const int64_t> counts, Tensor output,
                           std::string_view what) override;
  Handle do_all_gather(Tensor input, std::span<const int64_t> counts, Tensor output, std::string_view what) override;
  Handle do_broadcast(Tensor tensor, int64_t root, std::string_view what) override;
  Handle do_all_to_all(Tensor input, std::span<const int64_t> send_counts, Tensor output,
                       std::span<const int64_t> receive_counts, std::string_view what) override;
  Handle do_send(Tensor tensor, int64_t to, std::string_view what, uint16_t channel) override;
  Handle do_receive(Tensor tensor, int64_t from, std::string_view what, uint16_t channel) override;

 private:
  NcclChannel& channel_of_all();
  NcclChannel& channel_between(int64_t from, int64_t to, uint16_t channel);
  Handle post(NcclChannel& channel, std::string_view kind, std::string_view what, int64_t bytes,
              NcclChannel::Call call);

  Traffic uncounted_;
  GroupPlace place_;
  device::WorkQueue& queue_;
  int64_t first_sequence_;  // of the tags under which this group's channels come about
  std::unique_ptr<NcclChannel> all_;
  std::map<std::tuple<int64_t, int64_t, uint16_t>, std::unique_ptr<NcclChannel>> between_;  // by (from, to, channel)
};

}  // namespace quintet::comm
