#pragma once

#include "looping.h"
#include "net/socket.h"

#include <utility>

#include <netinet/in.h>
#include <sys/socket.h>

// Two ends of a connection that do not block.
namespace ringcomm::testing {

struct Pair {
  UniqueFd a;
  UniqueFd b;
};

inline Pair unixPair() {
  int fds[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

inline Pair tcpPair(int bufferBytes) {
  const SocketOptions options{bufferBytes, ""};
  Result<UniqueFd> listening = listenOnAll(0, options);
  REQUIRE(listening.ok());
  const Address to = Address::parseHost("127.0.0.1", localAddress(listening->get()).port()).value();
  Result<UniqueFd> dialed = startConnect(to, options);
  REQUIRE(dialed.ok());
  int accepted = -1;
  REQUIRE(eventually(std::chrono::seconds(1), [&] {
    accepted = ::accept4(listening->get(), nullptr, nullptr, SOCK_NONBLOCK);
    return accepted >= 0;
  }));
  return {std::move(*dialed), UniqueFd(accepted)};
}

}  // namespace ringcomm::testing
