#include "net/control_link.h"

#include <array>
#include <cerrno>

#include <sys/epoll.h>
#include <sys/socket.h>

namespace ringcomm {

ControlLink::ControlLink(Loop& loop, UniqueFd fd, Callbacks callbacks)
    : loop_(loop), fd_(std::move(fd)), callbacks_(std::move(callbacks)) {}

ControlLink::~ControlLink() { loop_.unwatch(fd_.get(), this); }

Status ControlLink::start() {
  return loop_.watch(fd_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP, this);
}

void ControlLink::send(const ControlMessage& message) {
  if (ended_) {
    return;
  }
  unsent_ += encodeControl(message);
  // A broken connection shows itself on the reading side, in order.
  (void)flush();
}

void ControlLink::onEvents(uint32_t) noexcept {
  if (ended_) {
    return;
  }
  (void)flush();
  const Status status = receive();
  if (!status.ok()) {
    ended_ = true;
    auto ended = std::move(callbacks_.ended);
    ended(status);
  }
}

Status ControlLink::flush() {
  while (!unsent_.empty()) {
    const ssize_t sent =
        ::send(fd_.get(), unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) {
        continue;
      }
      return errno == EAGAIN ? Status() : Status::fromErrno("send", errno);
    }
    unsent_.erase(0, static_cast<size_t>(sent));
  }
  return {};
}

Status ControlLink::receive() {
  std::array<std::byte, 4096> buffer;
  while (true) {
    const ssize_t got = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got == 0) {
      return {Code::kPeerLost, "closed its connection"};
    }
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      return errno == EAGAIN
                 ? Status()
                 : Status(Code::kPeerLost, Status::fromErrno("connection lost", errno).message());
    }
    std::span<const std::byte> bytes(buffer.data(), static_cast<size_t>(got));
    while (true) {
      Result<std::optional<ControlMessage>> message = parser_.next(bytes);
      RC_RETURN_IF_ERROR(message.status());
      const std::optional<ControlMessage>& whole = *message;
      if (!whole.has_value()) {
        break;
      }
      callbacks_.message(*whole);
    }
  }
}

}  // namespace ringcomm
