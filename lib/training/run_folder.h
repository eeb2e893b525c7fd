// The folder that a run writes into: run.dir/run.name.
#pragma once

#include <string>

#include "lib/config/config.h"

namespace quintet::training {

std::string run_folder(const config::Config& config);

// Makes the folder and writes config.yaml into it. Outputs of an earlier run that left no checkpoint to go on from are
// moved to <folder>/earlier_1, earlier_2, ...; returns where to, or "" for a fresh folder. With checkpoint.resume:
// never a used folder is refused. Throws Error(config). Rank 0 calls it.
std::string prepare_run_folder(const config::Config& config);

}  // namespace quintet::training
