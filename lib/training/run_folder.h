// The folder that a run writes into: run.dir/run.name.
#pragma once

#include <string>

#include "lib/config/config.h"

namespace quintet::training {

// Holds a run's folder for one run at a time, by a lock on <folder>/.lock that goes with the process. Makes the folder.
// Throws Error(config) while another run holds it. File systems without locks are taken on trust.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_;
};

std::string run_folder(const config::Config& config);

// Writes config.yaml into the folder, whose lock the caller holds. Outputs of an earlier run that left no checkpoint to
// go on from are moved to <folder>/earlier_1, earlier_2, ...; returns where to, or "" for a fresh folder. With
// checkpoint.resume: never a used folder is refused. Throws Error(config). Rank 0 calls it.
std::string prepare_run_folder(const config::Config& config);

}  // namespace quintet::training
