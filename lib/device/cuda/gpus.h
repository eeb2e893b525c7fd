// The GPUs of this machine, as the driver and this build let us use them.
#pragma once

#include <string>
#include <string_view>

namespace quintet::device::cuda {

// Whether code for `architectures`, as "sm_80, sm_90a", runs on a GPU of compute capability major.minor: sm_90a on 9.0
// alone; sm_80 on 8.0 and all later ones, for which the driver compiles it anew.
bool runs_on(std::string_view architectures, int major, int minor);
// "CUDA 13.0 (sm_80, sm_90a, sm_100), cuBLASLt 13.0.2".
std::string built_in();
// GPUs of any kind; 0 and why, where the driver shows none.
int visible_gpus(std::string& problem);
// "NVIDIA H200 (sm_90, 143 GB)"; what keeps us from using it, or empty.
std::string name_of_gpu(int ordinal);
std::string problem_of_gpu(int ordinal);

}  // namespace quintet::device::cuda
