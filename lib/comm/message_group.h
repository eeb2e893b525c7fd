// A process group whose operations are messages over a transport. Reductions follow the order of sums: pieces travel to
// their owner, the owner adds them in ascending group rank. Tensors on a device go to the group's twin among the
// communicator's device groups, where it has those.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/comm/message_operations.h"
#include "lib/comm/process_group.h"

namespace quintet::comm {

class MessageGroup : public ProcessGroup {
 public:
  // `name` appears in reports ("dp+ep"); groups with the same members share `lane`, whose operations all members post
  // in the same order.
  MessageGroup(Communicator& communicator, Transport& transport, uint8_t lane, std::string name,
               std::vector<int64_t> members, int64_t rank, std::optional<Axis> booked_under, Traffic& traffic);

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
  // The twin, if the operation that this tensor belongs to is the twin's.
  ProcessGroup* twin_for(const Tensor& tensor);
  // `operand` is one of the operation's and says where they lie; `peer`, of a message.
  OperationInfo info(std::string_view kind, std::string_view what, const Tensor& operand,
                     std::optional<int64_t> peer = std::nullopt) const;
  // What collectives of one member are.
  void copy(const Tensor& from, const Tensor& to);
  Handle post(OperationInfo info, Exchange exchange);

  Communicator& communicator_;
  Transport& transport_;
  uint8_t lane_;
  std::string name_;
};

}  // namespace quintet::comm
