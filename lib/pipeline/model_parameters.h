// All parameters of the model, over all stages, and whole ones brought together from the ranks that hold their shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/comm/communicator.h"
#include "lib/config/config.h"
#include "lib/device/device.h"
#include "lib/model/stage.h"
#include "lib/optimizer/zero.h"
#include "lib/parallel/parameter_store.h"

namespace quintet::pipeline {

// What a stage of the pipeline holds.
model::StagePart part_of_stage(const config::Config& config, int64_t stage);

struct ModelParameter {
  parallel::ParameterSpec spec;
  int64_t stage = 0;          // the first that holds it
  int64_t pipeline_rank = 0;  // of that stage
};

// Each parameter once, from the embedding to the head: declared by the layers themselves, as every rank's are.
std::vector<ModelParameter> model_parameters(const config::Config& config, const Mesh& mesh);

// Gathers parameters on rank 0, one at a time.
class WholeParameters {
 public:
  using Values = optimizer::ZeroOptimizer::Values;

  WholeParameters(const std::vector<ModelParameter>& all, comm::Communicator& communicator, device::Device& device,
                  const parallel::ParameterStore& own, optimizer::ZeroOptimizer& optimizer);

  // Every rank calls it for the same parameters in the same order. On rank 0: the logical tensor in host memory, valid
  // until the next call; elsewhere an absent tensor. Bytes are not counted.
  Tensor gather(const std::string& name, Values values);

 private:
  DType type_of(const ModelParameter& parameter, Values values) const;
  // The shard of the rank that stands `tensor_rank` along tp in the parameter's stage, put into its place.
  void place(const ModelParameter& parameter, const Coordinate& holder, Tensor shard);

  comm::Communicator& communicator_;
  device::Device& device_;
  optimizer::ZeroOptimizer& optimizer_;
  device::ElementTypes types_;
  std::map<std::string, ModelParameter> all_;
  std::map<std::string, const parallel::Parameter*> own_;
  device::Buffer gathered_;
  std::vector<std::byte> shard_, whole_;
};

}  // namespace quintet::pipeline
