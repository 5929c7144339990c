#include "net/lane.h"

#include "net/socket.h"

#include <algorithm>
#include <cerrno>

#include <sys/epoll.h>
#include <sys/socket.h>

namespace ringcomm {

namespace {

// From which size of a message on it is worth a system call to be woken later, and how much of it
// has to arrive for that: more where the message is longer, so that the rest hides the delay.
// Within a host the sender is at work at the same time, and both would wait for each other by
// turns.
constexpr uint64_t kExpectFrom = uint64_t{256} << 10;
constexpr uint64_t kLeastLowWater = uint64_t{32} << 10;
constexpr uint64_t kMostLowWater = uint64_t{256} << 10;
constexpr uint64_t kLowWaterShare = 8;

size_t totalBytes(const iovec* pieces, int count) noexcept {
  size_t total = 0;
  for (int i = 0; i < count; ++i) {
    total += pieces[i].iov_len;
  }
  return total;
}

msghdr messageOf(const iovec* pieces, int count) noexcept {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces);
  message.msg_iovlen = static_cast<size_t>(count);
  return message;
}

}  // namespace

TcpLane::TcpLane(Loop& loop, UniqueFd fd, LaneOwner& owner)
    : loop_(loop), fd_(std::move(fd)), owner_(owner), withinHost_(staysOnHost(fd_.get())) {
  watchStatus_ = loop_.watch(fd_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP, this);
}

TcpLane::~TcpLane() { loop_.unwatch(fd_.get(), this); }

LaneIo TcpLane::send(const iovec* pieces, int count) noexcept {
  if (!writable_) {
    return {};
  }
  const msghdr message = messageOf(pieces, count);
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0 && errno != EAGAIN) {
    return {.error = errno};
  }
  const size_t bytes = sent < 0 ? 0 : static_cast<size_t>(sent);
  // A short write means a full buffer, and the kernel will tell when there is room again.
  writable_ = bytes == totalBytes(pieces, count);
  return {.bytes = bytes};
}

LaneIo TcpLane::receive(const iovec* pieces, int count) noexcept {
  if (!readable_) {
    return {};
  }
  msghdr message = messageOf(pieces, count);
  ssize_t got = 0;
  do {
    got = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (errno != EAGAIN) {
      return {.error = errno};
    }
    readable_ = false;
    return {};
  }
  if (got == 0) {
    return {.error = kLaneEnded};
  }
  const size_t bytes = static_cast<size_t>(got);
  // A short read means an empty buffer; but an end that was announced is not announced again.
  readable_ = ending_ || bytes == totalBytes(pieces, count);
  return {.bytes = bytes};
}

void TcpLane::expect(uint64_t left, uint64_t total) noexcept {
  const uint64_t enough = withinHost_
                              ? kLeastLowWater
                              : std::clamp(total / kLowWaterShare, kLeastLowWater, kMostLowWater);
  const int wanted =
      total < kExpectFrom ? 1 : static_cast<int>(std::clamp<uint64_t>(left, 1, enough));
  if (wanted != lowWater_ &&
      ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted) == 0) {
    lowWater_ = wanted;
  }
}

size_t TcpLane::peek(std::byte* to, size_t bytes) noexcept {
  expect(0, 0);  // else a few bytes that come later would not be told
  const ssize_t got = ::recv(fd_.get(), to, bytes, MSG_DONTWAIT | MSG_PEEK);
  return got < 0 ? 0 : static_cast<size_t>(got);
}

void TcpLane::onEvents(uint32_t events) noexcept {
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    ending_ = true;
    readable_ = true;
  }
  readable_ = readable_ || (events & EPOLLIN) != 0;
  writable_ = writable_ || (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
  owner_.onLaneReady();
}

}  // namespace ringcomm
