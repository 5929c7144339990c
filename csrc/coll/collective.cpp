#include "coll/collective.h"

#include <numeric>

namespace ringcomm {

const char* collectiveName(Collective kind) noexcept {
  switch (kind) {
#define RC_NAME(name, text) \
  case Collective::name:    \
    return text;
    RC_COLLECTIVES(RC_NAME)
#undef RC_NAME
  }
  return "unknown";
}

uint64_t collectiveBytes(const CollectiveSpec& spec) noexcept {
  switch (spec.kind) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
      return spec.count * spec.elementSize;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      return std::accumulate(spec.blockBytes.begin(), spec.blockBytes.end(), uint64_t{0});
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
    case Collective::kBarrier:
      break;
  }
  return 0;
}

}  // namespace ringcomm
