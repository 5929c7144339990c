#pragma once

#include "base/status.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <sys/socket.h>

// Where a rank can be reached. Numbers only: nothing here resolves a host name, so what a hosts
// file or a DNS server says about one cannot send a rank to itself or to a stranger.
namespace ringcomm {

// One IPv4 or IPv6 socket address. Default constructed it is empty (AF_UNSPEC).
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  // Empty when it is neither IPv4 nor IPv6, or too short.
  static Address from(const sockaddr* address, socklen_t bytes) noexcept;

  // "1.2.3.4:80", "[::1]:80", "[fe80::1%2]:80"; the scope is an index or an interface's name.
  static Result<Address> parse(std::string_view text);

  // The address of a host alone, without port: "1.2.3.4", "::1", with or without brackets.
  static Result<Address> parseHost(std::string_view host, uint16_t port);

  const sockaddr* raw() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const noexcept { return storage.ss_family; }
  bool empty() const noexcept { return storage.ss_family == AF_UNSPEC; }
  uint16_t port() const noexcept;
  Address withPort(uint16_t port) const noexcept;

  // An IPv4 address mapped into IPv6 (::ffff:1.2.3.4) as the IPv4 address that it is; others as
  // they are. An IPv6 socket that serves both families shows its IPv4 peers mapped.
  Address unmapped() const noexcept;
  std::string hostString() const;
  std::string toString() const;

  bool isLoopback() const noexcept;     // 127/8, ::1, and 127/8 mapped into IPv6
  bool isLinkLocal() const noexcept;    // 169.254/16, fe80::/10
  bool isUnspecified() const noexcept;  // 0.0.0.0, ::
  bool isMulticast() const noexcept;    // and 255.255.255.255

  bool sameHost(const Address& other) const noexcept;  // equal but for the port
  friend bool operator==(const Address& a, const Address& b) noexcept {
    return a.sameHost(b) && a.port() == b.port();
  }
};

// Whether the first `prefix` bits of two addresses of one family agree; 0 bits never do.
bool inSubnet(const Address& address, const Address& network, unsigned prefix) noexcept;

// The local address from which `target` is reached; kSystem when there is no route. No packet is
// sent.
Result<Address> routeSource(const Address& target);

}  // namespace ringcomm
