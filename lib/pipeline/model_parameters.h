// All parameters of the model, over all stages.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/config/config.h"
#include "lib/model/stage.h"
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

}  // namespace quintet::pipeline
