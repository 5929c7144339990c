#include "torch/work.h"

#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>

#include <utility>

namespace ringcomm {

namespace {

TimePoint deadlineOf(std::chrono::milliseconds timeout) {
  // The operation has a deadline of its own; it ends in time also when nobody limits the wait.
  const bool limited = timeout > std::chrono::milliseconds(0);
  return Clock::now() + limitOf(limited ? timeout : std::chrono::milliseconds::max());
}

}  // namespace

std::exception_ptr exceptionOf(const Status& status, const std::string& doing) {
  if (status.ok()) {
    return nullptr;
  }
  // A cause that is about this very operation names it already.
  const bool named = doing.empty() || status.message().find(doing) != std::string::npos;
  const std::string text =
      "ringcomm: " + (named ? std::string() : doing + " failed: ") + status.message();
  try {
    switch (status.code()) {
      case Code::kInvalidArgument:
        C10_THROW_ERROR(ValueError, text);
      case Code::kPeerLost:
      case Code::kRefused:
      case Code::kSystem:
      case Code::kProtocol:
        C10_THROW_ERROR(DistNetworkError, text);
      default:
        C10_THROW_ERROR(DistBackendError, text);
    }
  } catch (...) {
    return std::current_exception();
  }
}

RingWork::RingWork(std::shared_ptr<Group> group, ElasticPool& completers, Call call)
    : Work(group->rank(), call.type, call.title,
           call.inputs.empty() ? std::nullopt : std::make_optional(call.inputs)),
      group_(std::move(group)),
      completers_(completers),
      call_(std::move(call)) {}

void RingWork::start(std::vector<OpDesc> descs, bool sync) {
  if (call_.epilogue) {
    // Copies into the caller's tensors see the caller's modes (inference, profiling).
    call_.epilogue = [state = at::ThreadLocalState(), epilogue = std::move(call_.epilogue)] {
      at::ThreadLocalStateGuard guard(state);
      epilogue();
    };
  }
  running_.store(descs.size());
  const bool waits = sync && descs.size() == 1;
  for (OpDesc& desc : descs) {
    // The operation keeps the work, and with it the tensors, until it is done: callers may drop
    // both.
    auto self = c10::intrusive_ptr<RingWork>::unsafe_reclaim_from_nonowning(this);
    auto onDone = [self = std::move(self)](Op& op) mutable {
      self->onOpDone(op);
      if (self.use_count() == 1) {
        // Nobody else has it. Freeing tensors may take the GIL, which a loop must not wait for.
        ElasticPool& completers = self->completers_;
        completers.submit([last = std::move(self)] {});
      }
    };
    ops_.push_back(group_->submit(std::move(desc), std::move(onDone), waits));
  }
  if (sync) {
    for (const auto& op : ops_) {
      group_->wait(*op, deadlineOf(kNoTimeout));
    }
    std::unique_lock<std::mutex> lock(mutex_);
    cv_.wait(lock, [this] { return completed_; });
  }
}

// On the loop that completed the operation.
void RingWork::onOpDone(const Op& op) {
  if (!op.status().ok()) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) {
      status_ = op.status();
      failed_ = op.describe();
    }
  }
  if (running_.fetch_sub(1) != 1) {
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  const Status status = status_;
  const std::string failed = failed_;
  lock.unlock();
  if (status.ok()) {
    succeed();
  } else {
    conclude(status, failed);
  }
}

void RingWork::succeed() {
  if (!call_.epilogue) {
    conclude({}, {});
    return;
  }
  auto self = c10::intrusive_ptr<RingWork>::unsafe_reclaim_from_nonowning(this);
  completers_.submit([self] {
    Status status;
    try {
      self->call_.epilogue();
    } catch (const std::exception& error) {
      status = {Code::kInternal, error.what()};
    }
    self->conclude(status, "copying the result back");
  });
}

void RingWork::conclude(const Status& status, const std::string& doing) {
  FuturePtr future;
  FuturePtr futureResult;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = status;
    concluded_ = true;
    future = future_;
    futureResult = futureResult_;
  }
  finish(exceptionOf(status, doing));
  if (future == nullptr && futureResult == nullptr) {
    return;
  }
  auto self = c10::intrusive_ptr<RingWork>::unsafe_reclaim_from_nonowning(this);
  completers_.submit([self, future, futureResult] {
    if (futureResult != nullptr) {
      self->resolveResult(futureResult);
    }
    if (future != nullptr) {
      self->resolve(future);
    }
  });
}

bool RingWork::isCompleted() {
  std::lock_guard<std::mutex> lock(mutex_);
  return completed_;
}

bool RingWork::isSuccess() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return completed_ && exception_ == nullptr;
}

bool RingWork::wait(std::chrono::milliseconds timeout) {
  const TimePoint until = deadlineOf(timeout);
  for (const auto& op : ops_) {
    group_->wait(*op, until);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (!cv_.wait_until(lock, until, [this] { return completed_; })) {
    C10_THROW_ERROR(DistBackendError,
                    "ringcomm: Timed out waiting " + std::to_string(timeout.count()) + "ms for " +
                        ops_[0]->describe() + " in wait(); the operation itself goes on");
  }
  if (exception_ != nullptr) {
    std::rethrow_exception(exception_);
  }
  return true;
}

void RingWork::abort() { group_->abort("aborted " + ops_[0]->describe()); }

std::vector<at::Tensor> RingWork::result() {
  TORCH_CHECK(isCompleted(), "ringcomm: result() of a work that is not completed: wait() first");
  return call_.outputs;
}

c10::intrusive_ptr<c10::ivalue::Future> RingWork::getFuture() {
  return futureIn(future_, c10::ListType::create(c10::TensorType::get()), &RingWork::resolve);
}

c10::intrusive_ptr<c10::ivalue::Future> RingWork::getFutureResult() {
  return futureIn(futureResult_, c10::IntType::get(), &RingWork::resolveResult);
}

RingWork::FuturePtr RingWork::futureIn(FuturePtr& slot, const c10::TypePtr& type,
                                       void (RingWork::*resolve)(const FuturePtr&) const) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (slot == nullptr) {
    FuturePtr future = c10::make_intrusive<c10::ivalue::Future>(type);
    slot = future;
    if (concluded_) {
      cv_.wait(lock, [this] { return completed_; });
      lock.unlock();
      (this->*resolve)(future);  // before anybody can have attached a callback: it runs none
    }
    return future;
  }
  return slot;
}

void RingWork::resolve(const FuturePtr& future) const {
  if (const std::exception_ptr error = exception()) {
    future->setError(error);
  } else {
    future->markCompleted(c10::IValue(call_.outputs));
  }
}

void RingWork::resolveResult(const FuturePtr& future) const {
  future->markCompleted(c10::IValue(static_cast<int64_t>(resultCode())));
}

int RingWork::resultCode() const {
  std::lock_guard<std::mutex> lock(mutex_);
  switch (status_.code()) {
    case Code::kOk:
      return static_cast<int>(c10d::WorkResult::SUCCESS);
    case Code::kTimeout:
      return static_cast<int>(c10d::WorkResult::TIMEOUT);
    default:
      return static_cast<int>(c10d::WorkResult::COMM_ERROR);
  }
}

}  // namespace ringcomm
