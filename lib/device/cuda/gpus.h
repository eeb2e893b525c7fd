// The GPUs of this machine, as the driver and this build let us use them.
#pragma once

#include <string>

namespace quintet::device::cuda {

// "CUDA 13.0 (sm_80, sm_90a, sm_100), cuBLASLt 13.0.2".
std::string built_in();
// GPUs of any kind; 0 and why, where the driver shows none.
int visible_gpus(std::string& problem);
// "NVIDIA H200 (sm_90, 143 GB)"; what keeps us from using it, or empty.
std::string name_of_gpu(int ordinal);
std::string problem_of_gpu(int ordinal);

}  // namespace quintet::device::cuda
