#include "engine/spec.h"

#include "coll/plan.h"

namespace ringcomm {

namespace {

// Buffers by their index in the plan, which has its scratch in front of them.
std::vector<uint64_t> bytesFrom(const std::vector<Buffer>& buffers, size_t first, size_t count) {
  std::vector<uint64_t> bytes(count, 0);
  for (size_t i = 0; i < count && first - 1 + i < buffers.size(); ++i) {
    bytes[i] = buffers[first - 1 + i].bytes;
  }
  return bytes;
}

}  // namespace

CollectiveSpec specOf(const OpDesc& desc, const std::vector<Buffer>& buffers, int rank, int world) {
  CollectiveSpec spec;
  spec.kind = desc.kind;
  spec.rank = rank;
  spec.world = world;
  spec.root = desc.root;
  spec.elementSize = dtypeSize(desc.dtype);
  const auto ranks = static_cast<size_t>(world);
  switch (desc.kind) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
      spec.count = buffers[0].bytes / spec.elementSize;
      break;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      spec.blockBytes = bytesFrom(buffers, kBlocks, ranks);
      break;
    case Collective::kGather:
    case Collective::kScatter:
      // Off the root there is only the rank's own block.
      spec.blockBytes = bytesFrom(buffers, kBlocks, ranks);
      spec.blockBytes[static_cast<size_t>(rank)] = buffers[0].bytes;
      break;
    case Collective::kAllToAll:
      spec.sendBytes = bytesFrom(buffers, kInput, ranks);
      spec.recvBytes = bytesFrom(buffers, kInput + ranks, ranks);
      break;
    case Collective::kBarrier:
      break;
  }
  return spec;
}

}  // namespace ringcomm
