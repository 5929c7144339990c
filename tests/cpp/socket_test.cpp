#include "net/socket.h"

#include <doctest/doctest.h>

#include <string>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

using namespace ringcomm;

namespace {

std::string congestionOf(int fd) {
  char name[16] = {};
  socklen_t size = sizeof name;
  REQUIRE(::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0);
  return name;
}

// A connection through loopback that has been prepared with `options`.
UniqueFd prepared(const SocketOptions& options) {
  Result<UniqueFd> listening = listenOnAll(0, options);
  REQUIRE(listening.ok());
  const uint16_t port = localAddress(listening->get()).port();
  Result<UniqueFd> fd = startConnect(Address::parseHost("127.0.0.1", port).value(), options);
  REQUIRE(fd.ok());
  pollfd ready{fd->get(), POLLOUT, 0};
  REQUIRE(::poll(&ready, 1, 1000) == 1);
  REQUIRE(connectError(fd->get()) == 0);
  REQUIRE(prepareConnection(fd->get(), options).ok());
  return std::move(*fd);
}

}  // namespace

TEST_CASE("within a host nothing is paced, unless the user chose so") {
  CHECK(congestionOf(prepared({}).get()) == "reno");
  const UniqueFd plain(::socket(AF_INET, SOCK_STREAM, 0));
  const std::string usual = congestionOf(plain.get());
  CHECK(congestionOf(prepared({0, usual}).get()) == usual);
}

TEST_CASE("both ends of an IPv4 connection show IPv4 addresses, also where IPv6 is served too") {
  Result<UniqueFd> listening = listenOnAll(0, {});
  REQUIRE(listening.ok());
  const uint16_t port = localAddress(listening->get()).port();
  const Address to = Address::parseHost("127.0.0.1", port).value();
  Result<UniqueFd> dialed = startConnect(to, {});
  REQUIRE(dialed.ok());
  pollfd ready{listening->get(), POLLIN, 0};
  REQUIRE(::poll(&ready, 1, 1000) == 1);
  const UniqueFd accepted(::accept(listening->get(), nullptr, nullptr));
  REQUIRE(accepted);
  CHECK(localAddress(accepted.get()) == to);
  CHECK(peerAddress(accepted.get()) == localAddress(dialed->get()));
  CHECK(peerAddress(accepted.get()).toString().starts_with("127.0.0.1:"));
  CHECK(staysOnHost(accepted.get()));
}

TEST_CASE("a port that is taken is named, with what to do when a host has several ranks") {
  Result<UniqueFd> first = listenOnAll(0, {});
  REQUIRE(first.ok());
  const std::string port = std::to_string(localAddress(first->get()).port());
  const Result<UniqueFd> second = listenOnAll(localAddress(first->get()).port(), {});
  CHECK(second.status().code() == Code::kSystem);
  const std::string message = second.status().message();
  CAPTURE(message);
  CHECK(message.find("cannot listen on port " + port + " ") != std::string::npos);
  CHECK(message.find("ringcomm.Options(port=" + port + " + local_rank)") != std::string::npos);
  CHECK(message.find("Address already in use") != std::string::npos);
}

TEST_CASE("a congestion control that the kernel does not have is named") {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  const Status status = prepareConnection(fd.get(), {0, "nosuch"});
  CHECK(status.message().find("congestion control 'nosuch'") != std::string::npos);
}
