#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringcomm {

// One line per collective that has plans: enumerator, torch's name of it.
#define RC_COLLECTIVES(X)     \
  X(kAllReduce, "all_reduce") \
  X(kBroadcast, "broadcast")  \
  X(kAllGather, "all_gather") \
  X(kBarrier, "barrier")

enum class Collective : uint8_t {
#define RC_ENUM(name, text) name,
  RC_COLLECTIVES(RC_ENUM)
#undef RC_ENUM
};

#define RC_COUNT(name, text) +1
inline constexpr size_t kCollectiveCount = 0 RC_COLLECTIVES(RC_COUNT);
#undef RC_COUNT

const char* collectiveName(Collective kind) noexcept;

// What is asked for, as one rank sees it. `rank` alone differs between the ranks of a group: the
// choice of an algorithm may look at everything else, and at nothing else.
struct CollectiveSpec {
  Collective kind = Collective::kBarrier;
  int rank = 0;
  int world = 1;
  int root = 0;                      // broadcast
  uint64_t count = 0;                // all_reduce, broadcast: elements
  size_t elementSize = 1;            // all_reduce, broadcast: bytes of one
  std::vector<uint64_t> blockBytes;  // all_gather: bytes of each rank's block, `world` of them
};

// The bytes of the result on one rank: what sizes are compared by.
uint64_t collectiveBytes(const CollectiveSpec& spec) noexcept;

}  // namespace ringcomm
