// Parameters brought together from the ranks that hold their shards.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "lib/comm/communicator.h"
#include "lib/device/device.h"
#include "lib/optimizer/zero.h"
#include "lib/parallel/parameter_store.h"
#include "lib/pipeline/model_parameters.h"

namespace quintet::checkpoint {

// Gathers parameters on rank 0, one at a time.
class WholeParameters {
 public:
  using Values = optimizer::ZeroOptimizer::Values;

  WholeParameters(const std::vector<pipeline::ModelParameter>& all, comm::Communicator& communicator,
                  device::Device& device, const parallel::ParameterStore& own, optimizer::ZeroOptimizer& optimizer);

  // Every rank calls it for the same parameters in the same order. On rank 0: the logical tensor in host memory, valid
  // until the next call; elsewhere an absent tensor. Bytes are not counted.
  Tensor gather(const std::string& name, Values values);

 private:
  DType type_of(const pipeline::ModelParameter& parameter, Values values) const;
  // The shard of the rank that stands `tensor_rank` along tp in the parameter's stage, put into its place.
  void place(const pipeline::ModelParameter& parameter, const Coordinate& holder, Tensor shard);

  comm::Communicator& communicator_;
  device::Device& device_;
  optimizer::ZeroOptimizer& optimizer_;
  device::ElementTypes types_;
  std::map<std::string, pipeline::ModelParameter> all_;
  std::map<std::string, const parallel::Parameter*> own_;
  device::Buffer gathered_;
  std::vector<std::byte> shard_, whole_;
};

}  // namespace quintet::checkpoint
