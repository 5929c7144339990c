#include "base/thread.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>

#include <sched.h>

namespace ringcomm {

namespace {

int affinityCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// cgroup v2's "quota period" in this process's own group, as a container sees it.
int quotaCores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) {
    return std::numeric_limits<int>::max();
  }
  return std::max(1, static_cast<int>(std::ceil(std::strtod(quota.c_str(), nullptr) / period)));
}

}  // namespace

int usableCores() { return std::max(1, std::min(affinityCores(), quotaCores())); }

}  // namespace ringcomm
