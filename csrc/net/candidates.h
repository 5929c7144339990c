#pragma once

#include "base/status.h"
#include "net/address.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// What a rank tells the others about where it can be reached, and in which order they try it.
namespace ringcomm {

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

// Which of `found` to offer, best first: `preferred`, other IPv4, other IPv6, 169.254/16, loopback.
// IPv6 link-local addresses are left out: their scope means nothing on another host.
// kInvalidArgument when the filter is senseless or leaves nothing, with the names that there are.
Result<std::vector<Candidate>> chooseCandidates(const std::vector<InterfaceAddress>& found,
                                                const CandidateOptions& options,
                                                const Address& preferred);

// The three above, for this process.
Result<Candidates> localCandidates(const CandidateOptions& options);

std::string encodeCandidates(const Candidates& candidates);

// Never allocates more than kMaxCandidates entries; kProtocol with what is wrong.
Result<Candidates> decodeCandidates(std::string_view bytes);

// Which of their addresses to try, best first. The same network stack: loopback, then all. Else
// never a loopback address, nor one that is also mine (a bridge such as docker0 has the same
// address on every machine: it leads back here); those in a subnet of mine first, then those of a
// family that I have, then the rest. Empty when nothing is left to try.
std::vector<Address> dialOrder(const Candidates& mine, const Candidates& theirs);

}  // namespace ringcomm
