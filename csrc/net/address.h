#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

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

struct Candidate {
  Address address;
  uint8_t prefix = 0;  // bits of the address that name its subnet

  friend bool operator==(const Candidate&, const Candidate&) = default;
};

// Which machine, and which network stack on it. Two containers or namespaces on one machine have
// loopback interfaces of their own.
struct HostId {
  std::string name;           // host name, for people and against cloned boot ids
  std::string boot;           // changes with each boot; empty: unknown, so equal to none
  uint64_t netNamespace = 0;  // 0: unknown, so equal to none

  static HostId ofThisProcess();
  bool sameHost(const HostId& other) const noexcept;
  bool sameNetwork(const HostId& other) const noexcept;  // loopback is the same one

  friend bool operator==(const HostId&, const HostId&) = default;
};

// What a rank publishes about itself: every address it listens on, the preferred first.
struct Candidates {
  HostId host;
  std::vector<Candidate> addresses;

  friend bool operator==(const Candidates&, const Candidates&) = default;
};

inline constexpr size_t kMaxCandidates = 64;

struct CandidateOptions {
  uint16_t port = 0;  // the listener's, never 0

  // Comma separated; an address is offered when one of them fits: an interface's name ("eth0"), the
  // start of one ("eth*"), or a subnet ("10.1.0.0/16", "fd00::/8"). Empty: all of them. Loopback
  // is offered when it fits, or when all are.
  std::string interfaces;

  // A host that all ranks reach (the store's address, numeric); the local address on the route to
  // it is preferred. Anything that is no numeric address is not used.
  std::string routeTo;
};

// One interface's address, as enumerated; separate from the choice so that this can be tested.
struct InterfaceAddress {
  std::string interface;
  Candidate candidate;  // without port
};

// All IPv4 and IPv6 addresses of the interfaces that are up.
Result<std::vector<InterfaceAddress>> listInterfaceAddresses();

// The local address from which `target` is reached; kSystem when there is no route. No packet is
// sent.
Result<Address> routeSource(const Address& target);

// Which of `found` to offer, best first: `preferred`, other IPv4, other IPv6, 169.254/16, loopback.
// IPv6 link-local addresses are left out: their scope means nothing on another host. kInvalidArgument
// when the filter is senseless or leaves nothing, with the names that there are.
Result<std::vector<Candidate>> chooseCandidates(const std::vector<InterfaceAddress>& found,
                                                const CandidateOptions& options,
                                                const Address& preferred);

// The three above, for this process.
Result<Candidates> localCandidates(const CandidateOptions& options);

std::string encodeCandidates(const Candidates& candidates);

// Never allocates more than kMaxCandidates entries; kProtocol with what is wrong.
Result<Candidates> decodeCandidates(std::string_view bytes);

// Which of their addresses to try, best first. The same network stack: loopback, then all. Else
// never a loopback address, nor one that is also mine (a bridge such as docker0 has the same address
// on every machine: it leads back here); those in a subnet of mine first, then those of a family
// that I have, then the rest.
std::vector<Address> dialOrder(const Candidates& mine, const Candidates& theirs);

}  // namespace ringcomm
