#include "engine/called.h"

#include "engine/spec.h"

namespace ringcomm {

namespace {

// Element counts in the place of kPerMessage, for people.
FrameHeader withBytes(FrameHeader call, uint64_t bytes) {
  const size_t size = dtypeSize(static_cast<DType>(call.dtype));
  if (call.count == OpDesc::kPerMessage && size > 0) {
    call.count = bytes / size;
  }
  return call;
}

}  // namespace

std::shared_ptr<Op> CalledOps::find(uint64_t sequence) const {
  const std::shared_ptr<Op>& op = last_[sequence % kKept];
  return op != nullptr && op->sequence() == sequence ? op : nullptr;
}

ControlMessage noteOf(const Op& op, const Viewer& viewer, int peer) {
  ControlMessage note;
  note.kind = ControlKind::kCall;
  note.call = op.signature();
  const Plan plan =
      makePlan(specOf(op.desc(), op.desc().buffers, viewer.rank, viewer.world), *viewer.tuning);
  for (const Step& step : plan.steps) {
    if (step.kind != StepKind::kCopy && step.kind != StepKind::kReduce && step.peer == peer) {
      (step.kind == StepKind::kSend ? note.gives : note.takes) += step.bytes;
    }
  }
  return note;
}

std::string differentCalls(const std::string& them, const FrameHeader& theirs,
                           const std::string& me, const FrameHeader& mine) {
  return "the ranks call different operations: " + them + " called " + describeCall(theirs) +
         ", but " + me + " called " + describeCall(mine);
}

Status compareNotes(const std::string& them, const ControlMessage& theirs, const std::string& me,
                    const ControlMessage& mine) {
  // Where one rank counts by message, only what the two exchange can be compared.
  const bool perMessage =
      theirs.call.count == OpDesc::kPerMessage || mine.call.count == OpDesc::kPerMessage;
  FrameHeader same = theirs.call;
  same.count = perMessage ? mine.call.count : theirs.call.count;
  if (same != mine.call) {
    return {Code::kMismatch, differentCalls(them, theirs.call, me, mine.call)};
  }
  if (!perMessage || (theirs.gives == mine.takes && theirs.takes == mine.gives)) {
    return {};
  }
  const bool toMe = theirs.gives != mine.takes;
  const FrameHeader first = withBytes(theirs.call, toMe ? theirs.gives : theirs.takes);
  const FrameHeader second = withBytes(mine.call, toMe ? mine.takes : mine.gives);
  return {Code::kMismatch, differentCalls(them, first, me, second) + "; the sizes are of what " +
                               (toMe ? them : me) + " has for " + (toMe ? me : them)};
}

}  // namespace ringcomm
