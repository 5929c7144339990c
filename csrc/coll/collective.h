#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringcomm {

// One line per collective that has plans: enumerator, torch's name of it.
#define RC_COLLECTIVES(X)             \
  X(kAllReduce, "all_reduce")         \
  X(kReduce, "reduce")                \
  X(kBroadcast, "broadcast")          \
  X(kAllGather, "all_gather")         \
  X(kGather, "gather")                \
  X(kScatter, "scatter")              \
  X(kReduceScatter, "reduce_scatter") \
  X(kAllToAll, "all_to_all")          \
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

// What is asked for, as one rank sees it. Between the ranks of a group `rank` differs, and the
// sizes of what a rank has no part in (gather, scatter, all_to_all); all else is equal. The choice
// of an algorithm may look at what is equal, and at nothing else.
struct CollectiveSpec {
  Collective kind = Collective::kBarrier;
  int rank = 0;
  int world = 1;
  int root = 0;            // broadcast, reduce, gather, scatter
  uint64_t count = 0;      // all_reduce, broadcast, reduce: elements
  size_t elementSize = 1;  // those three and reduce_scatter: bytes of one
  // all_gather, reduce_scatter: bytes of each rank's block, `world` of them. gather, scatter: the
  // same on the root; on the others only the rank's own entry is read.
  std::vector<uint64_t> blockBytes;
  // all_to_all: bytes for and from each rank, `world` of each. What rank a sends to b has to be
  // what b expects from a; the own entries have to be equal.
  std::vector<uint64_t> sendBytes;
  std::vector<uint64_t> recvBytes;
};

// What sizes are compared by: the bytes of the vector, or of all blocks together. 0 where the ranks
// need not agree on any size (gather, scatter, all_to_all).
uint64_t collectiveBytes(const CollectiveSpec& spec) noexcept;

}  // namespace ringcomm
