#include "engine/op.h"

#include <algorithm>
#include <utility>

namespace ringcomm {

std::string describeCall(const FrameHeader& signature) {
  const auto kind = static_cast<Collective>(signature.collective);
  std::string text = collectiveName(kind) + std::string(" #") + std::to_string(signature.sequence);
  if (kind == Collective::kBarrier) {
    return text;
  }
  const bool sized = signature.count != OpDesc::kPerMessage;
  text += " (" + (sized ? std::to_string(signature.count) + " x " : std::string()) +
          dtypeName(static_cast<DType>(signature.dtype));
  const auto op = static_cast<ReduceOp>(signature.reduceOp);
  if (op != ReduceOp::kNone) {
    const auto scaled = static_cast<OpDesc::Scaled>(signature.flags);
    text += std::string(", ") + (scaled == OpDesc::Scaled::kNo        ? reduceOpName(op)
                                 : scaled == OpDesc::Scaled::kByWorld ? "avg"
                                                                      : "premul_sum");
  }
  if (signature.root >= 0) {
    text += ", root " + std::to_string(signature.root);
  }
  return text + ")";
}

std::string Op::describe() const {
  if (desc_.transfer == OpDesc::Transfer::kNone) {
    return describeCall(signature_);
  }
  const bool sends = desc_.transfer == OpDesc::Transfer::kSend;
  const std::string peer =
      desc_.peer == kAnyPeer ? "any rank" : "rank " + std::to_string(desc_.peer);
  return std::string(sends ? "send to " : "recv from ") + peer + " (" +
         std::to_string(desc_.count) + " x " + dtypeName(desc_.dtype) + ", tag " +
         std::to_string(desc_.tag) + ")";
}

Op::Op(OpDesc desc, uint64_t sequence, TimePoint start)
    : desc_(std::move(desc)), deadline_(start + desc_.timeout) {
  signature_.collective = static_cast<uint8_t>(desc_.kind);
  signature_.dtype = static_cast<uint8_t>(desc_.dtype);
  signature_.reduceOp = static_cast<uint8_t>(desc_.reduceOp);
  signature_.flags = static_cast<uint8_t>(desc_.scaled);
  signature_.sequence = sequence;
  signature_.count = desc_.count;
  signature_.root = desc_.root;
}

// Sequentially consistent: either the earlier one sees that it is awaited when it is done, or the
// later one sees that it is done when it starts.
void Op::startAfter(const std::shared_ptr<Op>& earlier) {
  earlier->awaited_.store(true);
  earlier_.push_back(earlier);
}

bool Op::mayStart() const noexcept {
  return std::all_of(earlier_.begin(), earlier_.end(), [](const std::weak_ptr<Op>& entry) {
    const std::shared_ptr<Op> op = entry.lock();
    return op == nullptr || op->done();
  });
}

bool Op::overlaps(const Op& other) const noexcept {
  for (const Buffer& mine : desc_.buffers) {
    for (const Buffer& theirs : other.desc_.buffers) {
      if (mine.data < theirs.data + theirs.bytes && theirs.data < mine.data + mine.bytes) {
        return true;
      }
    }
  }
  return false;
}

void Op::completeShare(const Status& status) {
  if (!status.ok()) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) {
      status_ = status;
    }
  }
  if (remaining_.fetch_sub(1, std::memory_order_acq_rel) != 1) {
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done_.store(true);
  }
  wake_.notify_all();
  if (onDone_) {
    std::function<void(Op&)> callback = std::move(onDone_);
    callback(*this);
  }
}

bool Op::waitUntil(TimePoint until) {
  if (done()) {
    return true;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  return wake_.wait_until(lock, until, [this] { return done(); });
}

}  // namespace ringcomm
