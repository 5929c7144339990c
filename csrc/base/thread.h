#pragma once

namespace ringcomm {

// Cores this process may use: its affinity and its cgroup's CPU quota, at least 1.
int usableCores();

}  // namespace ringcomm
