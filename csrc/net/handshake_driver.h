#pragma once

#include "base/fd.h"
#include "base/status.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include <sys/socket.h>

namespace ringcomm {

// Drives a handshake machine (DialerHandshake or AcceptorHandshake) over a non-blocking socket:
// reads exactly what the machine wants and writes what it gives. advance() is called whenever the
// socket may be ready, until finished() or an error.
template <typename Machine>
class HandshakeDriver {
 public:
  HandshakeDriver(int fd, Machine& machine) : fd_(fd), machine_(machine) {}

  // Done on this side and the last byte handed to the kernel.
  bool finished() const { return machine_.done() && unsent_.empty(); }

  Status advance() {
    while (true) {
      unsent_ += machine_.takeOutput();
      RC_RETURN_IF_ERROR(flush());
      const size_t wanted = machine_.bytesWanted();
      if (!unsent_.empty() || wanted == 0) {
        return {};
      }
      std::array<std::byte, 128> buffer;
      const ssize_t got = ::recv(fd_, buffer.data(), std::min(wanted, buffer.size()), MSG_DONTWAIT);
      if (got == 0) {
        return {Code::kProtocol, "the connection ended during the handshake"};
      }
      if (got < 0) {
        if (errno == EINTR) {
          continue;  // the edge that brought us here does not come again
        }
        return errno == EAGAIN ? Status() : Status::fromErrno("handshake", errno);
      }
      Status fed = machine_.feed({buffer.data(), static_cast<size_t>(got)});
      if (!fed.ok()) {
        unsent_ += machine_.takeOutput();  // the refusal, which tells the peer why
        (void)flush();
        return fed;
      }
    }
  }

 private:
  Status flush() {
    while (!unsent_.empty()) {
      const ssize_t sent = ::send(fd_, unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0) {
        if (errno == EINTR) {
          continue;
        }
        return errno == EAGAIN ? Status() : Status::fromErrno("handshake", errno);
      }
      unsent_.erase(0, static_cast<size_t>(sent));
    }
    return {};
  }

  int fd_;
  Machine& machine_;
  std::string unsent_;
};

}  // namespace ringcomm
