#include "net/socket.h"

#include <cerrno>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace ringcomm {

namespace {

// Between two processes of a host there is nothing to congest, and a control that paces what it
// sends (BBR) costs timers: 16 MiB among 4 ranks took a third longer. Every kernel has this one.
constexpr char kWithinHost[] = "reno";

constexpr int kBacklog = 1024;

// Silence of the peer's host ends a connection after this time at the latest, whatever the
// system's defaults (about 15 minutes) are. Longer than an outage that should be survived.
constexpr int kUserTimeoutMs = 60'000;

bool setInt(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof value) == 0;
}

// A fixed buffer ends auto-tuning, so it is set only where it can be as large as asked for: above
// net.core.{r,w}mem_max that takes CAP_NET_ADMIN.
void setBuffer(int fd, int name, int forceName, int bytes) {
  if (setInt(fd, SOL_SOCKET, forceName, bytes)) {
    return;
  }
  int before = 0;
  socklen_t size = sizeof before;
  ::getsockopt(fd, SOL_SOCKET, name, &before, &size);
  if (before < 2 * bytes) {
    setInt(fd, SOL_SOCKET, name, bytes);
  }
}

// Before connect or listen: the receive buffer decides on the window scale of the handshake.
void setBuffers(int fd, const SocketOptions& options) {
  if (options.bufferBytes > 0) {
    setBuffer(fd, SO_RCVBUF, SO_RCVBUFFORCE, options.bufferBytes);
    setBuffer(fd, SO_SNDBUF, SO_SNDBUFFORCE, options.bufferBytes);
  }
}

Status bindAndListen(int fd, const Address& address) {
  if (::bind(fd, address.raw(), address.length) != 0) {
    const std::string port = std::to_string(address.port());
    return Status::fromErrno(
        "cannot listen on port " + port +
            " (option port, RINGCOMM_PORT; every process of a host needs one of its own: the local "
            "rank is not added to it; with several ranks on a host pass "
            "pg_options=ringcomm.Options(port=" +
            port + " + local_rank))",
        errno);
  }
  if (::listen(fd, kBacklog) != 0) {
    return Status::fromErrno("listen", errno);
  }
  return {};
}

bool setCongestion(int fd, const std::string& name) {
  return ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                      static_cast<socklen_t>(name.size())) == 0;
}

}  // namespace

Result<UniqueFd> listenOnAll(uint16_t port, const SocketOptions& options) {
  Status failure;
  for (const char* any : {"::", "0.0.0.0"}) {  // a kernel without IPv6 takes the second
    Address address = Address::parseHost(any, port).value();
    UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
      failure = Status::fromErrno("socket", errno);
      continue;
    }
    setInt(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (address.family() == AF_INET6) {
      setInt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    }
    setBuffers(fd.get(), options);
    // Tried here, where it fails at once, on every rank, and not when a peer is connected.
    RC_RETURN_IF_ERROR(prepareConnection(fd.get(), options));
    failure = bindAndListen(fd.get(), address);
    if (failure.ok()) {
      return fd;
    }
  }
  return failure;
}

Result<UniqueFd> startConnect(const Address& to, const SocketOptions& options) {
  UniqueFd fd(::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) {
    return Status::fromErrno("socket", errno);
  }
  setBuffers(fd.get(), options);
  if (::connect(fd.get(), to.raw(), to.length) != 0 && errno != EINPROGRESS) {
    return Status::fromErrno("connect to " + to.toString(), errno);
  }
  return fd;
}

int connectError(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
    return errno;
  }
  return error;
}

Status prepareConnection(int fd, const SocketOptions& options) {
  if (!setInt(fd, IPPROTO_TCP, TCP_NODELAY, 1)) {
    return Status::fromErrno("TCP_NODELAY", errno);
  }
  setInt(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  setInt(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  setInt(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  setInt(fd, IPPROTO_TCP, TCP_KEEPCNT, 6);
  setInt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  if (!options.congestion.empty()) {
    return setCongestion(fd, options.congestion)
               ? Status()
               : Status::fromErrno("congestion control '" + options.congestion + "'", errno);
  }
  if (staysOnHost(fd)) {
    (void)setCongestion(fd, kWithinHost);
  }
  return {};
}

bool staysOnHost(int fd) {
  const Address here = localAddress(fd);
  return here.length > 0 && here.sameHost(peerAddress(fd));
}

Address localAddress(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return {};
  }
  return Address::from(reinterpret_cast<sockaddr*>(&storage), size).unmapped();
}

Address peerAddress(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return {};
  }
  return Address::from(reinterpret_cast<sockaddr*>(&storage), size).unmapped();
}

}  // namespace ringcomm
