#pragma once

#include "base/clock.h"
#include "base/status.h"

#include <string>

namespace ringcomm {

// Where the ranks of one group find each other: keys and values that all of them see (torch's
// Store). Used by one thread, while a group is being made, and never after.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual Status set(const std::string& key, const std::string& value) = 0;
  // Waits for the key; kTimeout when it has not appeared by the deadline.
  virtual Result<std::string> get(const std::string& key, TimePoint deadline) = 0;
  virtual Status remove(const std::string& key) = 0;
};

}  // namespace ringcomm
