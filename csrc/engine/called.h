#pragma once

#include "coll/select.h"
#include "engine/op.h"
#include "net/frame.h"

#include <array>
#include <cstdint>
#include <memory>
#include <string>

namespace ringcomm {

// The collectives that this rank called last, by number: what its peers' calls are compared with.
class CalledOps {
 public:
  void add(const std::shared_ptr<Op>& op) { last_[op->sequence() % kKept] = op; }
  // Null if it has not been called yet, or too long ago.
  std::shared_ptr<Op> find(uint64_t sequence) const;

 private:
  static constexpr size_t kKept = 64;
  std::array<std::shared_ptr<Op>, kKept> last_;
};

// Who looks at a call, and how a group plans.
struct Viewer {
  int rank = 0;
  int world = 1;
  const Tuning* tuning = nullptr;
};

// What the viewer called, in the words of the control connection: the operation, and the bytes that
// its plan gives to the peer and takes from it.
ControlMessage noteOf(const Op& op, const Viewer& viewer, int peer);

// "the ranks call different operations: rank 1 called .., but rank 0 called .."
std::string differentCalls(const std::string& them, const FrameHeader& theirs,
                           const std::string& me, const FrameHeader& mine);

// kMismatch if two ranks' notes about the same operation do not fit each other.
Status compareNotes(const std::string& them, const ControlMessage& theirs, const std::string& me,
                    const ControlMessage& mine);

}  // namespace ringcomm
