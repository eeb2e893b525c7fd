// A function's name from its address, out of the executable's own symbol table: kernels have internal linkage, so the
// dynamic linker does not know them.
#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "tests/gpu_emulator/grid.h"

namespace quintet::gpu_emulator {
namespace {

uintptr_t load_address() {
  uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        *static_cast<uintptr_t*>(data) = info->dlpi_addr;
        return 1;
      },
      &address);
  return address;
}

template <typename T>
std::vector<T> read(std::ifstream& file, uint64_t offset, uint64_t count) {
  std::vector<T> values(count);
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(count * sizeof(T)));
  return file ? values : std::vector<T>(count);
}

std::map<uintptr_t, std::string> read_functions() {
  std::map<uintptr_t, std::string> names;
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const auto header = read<ElfW(Ehdr)>(file, 0, 1)[0];
  const auto sections = read<ElfW(Shdr)>(file, header.e_shoff, header.e_shnum);
  for (const auto& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const auto& strings = sections[section.sh_link];
    const auto text = read<char>(file, strings.sh_offset, strings.sh_size);
    for (const auto& symbol : read<ElfW(Sym)>(file, section.sh_offset, section.sh_size / sizeof(ElfW(Sym)))) {
      if ((symbol.st_info & 0xf) != STT_FUNC || symbol.st_name >= text.size()) continue;
      names[symbol.st_value] = text.data() + symbol.st_name;
    }
  }
  return names;
}

// "a::(anonymous namespace)::kernel<float>(Args...)" to "kernel<float>".
std::string shortened(std::string name) {
  int depth = 0;
  size_t end = name.size(), begin = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (name.compare(i, 21, "(anonymous namespace)") == 0) {
      i += 20;
      continue;
    }
    if (c == '(' && depth == 0) {
      end = i;
      break;
    }
    if (c == '<') ++depth;
    if (c == '>') --depth;
    if (depth == 0 && (c == ' ' || (c == ':' && i > 0 && name[i - 1] == ':'))) begin = i + 1;
  }
  return name.substr(begin, end - begin);
}

}  // namespace

std::string kernel_name(const void* kernel) {
  static const std::map<uintptr_t, std::string> names = read_functions();
  const auto found = names.find(reinterpret_cast<uintptr_t>(kernel) - load_address());
  if (found == names.end()) return fmt::format("kernel at {}", kernel);
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(found->second.c_str(), nullptr, nullptr, &status), &std::free);
  return shortened(status == 0 ? std::string(readable.get()) : found->second);
}

}  // namespace quintet::gpu_emulator
