#include "net/address.h"

#include "base/fd.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

namespace ringcomm {
namespace {

// The address's own bytes in network order: 4, 16 or none.
struct RawAddress {
  std::array<uint8_t, 16> bytes{};
  size_t size = 0;
};

const sockaddr_in& v4(const Address& address) noexcept {
  return reinterpret_cast<const sockaddr_in&>(address.storage);
}

const sockaddr_in6& v6(const Address& address) noexcept {
  return reinterpret_cast<const sockaddr_in6&>(address.storage);
}

RawAddress rawBytes(const Address& address) noexcept {
  RawAddress raw;
  if (address.family() == AF_INET) {
    raw.size = sizeof(in_addr);
    std::memcpy(raw.bytes.data(), &v4(address).sin_addr, raw.size);
  } else if (address.family() == AF_INET6) {
    raw.size = sizeof(in6_addr);
    std::memcpy(raw.bytes.data(), &v6(address).sin6_addr, raw.size);
  }
  return raw;
}

uint32_t scopeOf(const Address& address) noexcept {
  return address.family() == AF_INET6 ? v6(address).sin6_scope_id : 0;
}

template <typename T>
std::optional<T> parseNumber(std::string_view text) noexcept {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::optional<uint32_t> parseScope(const std::string& text) noexcept {
  if (const auto number = parseNumber<uint32_t>(text)) {
    return number;
  }
  const unsigned index = ::if_nametoindex(text.c_str());
  return index == 0 ? std::nullopt : std::optional<uint32_t>(index);
}

Status badAddress(std::string_view text, const char* why) {
  return {Code::kInvalidArgument, "\"" + std::string(text) + "\" is no numeric address: " + why};
}

}  // namespace

Address Address::from(const sockaddr* address, socklen_t bytes) noexcept {
  Address result;
  if (address == nullptr || bytes < sizeof(sockaddr_in)) {
    return result;
  }
  if (address->sa_family == AF_INET) {
    result.length = sizeof(sockaddr_in);
  } else if (address->sa_family == AF_INET6 && bytes >= sizeof(sockaddr_in6)) {
    result.length = sizeof(sockaddr_in6);
  }
  if (result.length > 0) {
    std::memcpy(&result.storage, address, result.length);
  }
  return result;
}

Result<Address> Address::parse(std::string_view text) {
  const size_t colon = text.rfind(':');
  const std::string_view host = text.substr(0, colon);
  if (colon == std::string_view::npos ||
      (host.find(':') != std::string_view::npos && !host.ends_with(']'))) {
    return badAddress(text, "a port is missing (1.2.3.4:80, [::1]:80)");
  }
  const auto port = parseNumber<uint16_t>(text.substr(colon + 1));
  if (!port) {
    return badAddress(text, "its port is not between 0 and 65535");
  }
  return parseHost(host, *port);
}

Result<Address> Address::parseHost(std::string_view host, uint16_t port) {
  std::string bare(host);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) {
    bare = host.substr(1, host.size() - 2);
  }
  if (bare.find('\0') != std::string::npos) {
    return badAddress("", "it contains a NUL");
  }
  sockaddr_in ipv4{};
  if (!bracketed && ::inet_pton(AF_INET, bare.c_str(), &ipv4.sin_addr) == 1) {
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(port);
    return from(reinterpret_cast<const sockaddr*>(&ipv4), sizeof ipv4);
  }
  sockaddr_in6 ipv6{};
  if (const size_t percent = bare.find('%'); percent != std::string::npos) {
    const auto scope = parseScope(bare.substr(percent + 1));
    if (!scope) {
      return badAddress(host, "its scope is no interface here");
    }
    ipv6.sin6_scope_id = *scope;
    bare.resize(percent);
  }
  if (::inet_pton(AF_INET6, bare.c_str(), &ipv6.sin6_addr) != 1) {
    return badAddress(host, "neither IPv4 nor IPv6");
  }
  ipv6.sin6_family = AF_INET6;
  ipv6.sin6_port = htons(port);
  return from(reinterpret_cast<const sockaddr*>(&ipv6), sizeof ipv6);
}

uint16_t Address::port() const noexcept {
  if (family() == AF_INET) {
    return ntohs(v4(*this).sin_port);
  }
  return family() == AF_INET6 ? ntohs(v6(*this).sin6_port) : uint16_t{0};
}

Address Address::withPort(uint16_t port) const noexcept {
  Address result = *this;
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in&>(result.storage).sin_port = htons(port);
  } else if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(result.storage).sin6_port = htons(port);
  }
  return result;
}

Address Address::unmapped() const noexcept {
  if (family() != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6(*this).sin6_addr)) {
    return *this;
  }
  sockaddr_in ipv4{};
  ipv4.sin_family = AF_INET;
  ipv4.sin_port = v6(*this).sin6_port;
  std::memcpy(&ipv4.sin_addr, &v6(*this).sin6_addr.s6_addr[12], sizeof ipv4.sin_addr);
  return from(reinterpret_cast<const sockaddr*>(&ipv4), sizeof ipv4);
}

std::string Address::hostString() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const RawAddress raw = rawBytes(*this);
  if (raw.size == 0 ||
      ::inet_ntop(family(), raw.bytes.data(), text.data(), text.size()) == nullptr) {
    return "(no address)";
  }
  std::string host = text.data();
  if (scopeOf(*this) != 0) {
    host += "%" + std::to_string(scopeOf(*this));
  }
  return host;
}

std::string Address::toString() const {
  if (empty()) {
    return hostString();
  }
  const std::string host = family() == AF_INET6 ? "[" + hostString() + "]" : hostString();
  return host + ":" + std::to_string(port());
}

bool Address::isLoopback() const noexcept {
  const RawAddress raw = rawBytes(*this);
  if (family() == AF_INET) {
    return raw.bytes[0] == 127;
  }
  return family() == AF_INET6 &&
         (IN6_IS_ADDR_LOOPBACK(&v6(*this).sin6_addr) ||
          (IN6_IS_ADDR_V4MAPPED(&v6(*this).sin6_addr) && raw.bytes[12] == 127));
}

bool Address::isLinkLocal() const noexcept {
  const RawAddress raw = rawBytes(*this);
  if (family() == AF_INET) {
    return raw.bytes[0] == 169 && raw.bytes[1] == 254;
  }
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6(*this).sin6_addr);
}

bool Address::isUnspecified() const noexcept {
  return !empty() && rawBytes(*this).bytes == RawAddress().bytes;
}

bool Address::isMulticast() const noexcept {
  const RawAddress raw = rawBytes(*this);
  if (family() == AF_INET) {
    return (raw.bytes[0] & 0xF0) == 0xE0 || v4(*this).sin_addr.s_addr == INADDR_BROADCAST;
  }
  return family() == AF_INET6 && raw.bytes[0] == 0xFF;
}

bool Address::sameHost(const Address& other) const noexcept {
  return family() == other.family() && rawBytes(*this).bytes == rawBytes(other).bytes &&
         scopeOf(*this) == scopeOf(other);
}

bool inSubnet(const Address& address, const Address& network, unsigned prefix) noexcept {
  const RawAddress a = rawBytes(address);
  const RawAddress b = rawBytes(network);
  if (address.family() != network.family() || prefix == 0 || prefix > a.size * 8) {
    return false;
  }
  const size_t whole = prefix / 8;
  const auto mask = static_cast<uint8_t>(0xFF00u >> (prefix % 8));
  return std::memcmp(a.bytes.data(), b.bytes.data(), whole) == 0 &&
         (prefix % 8 == 0 || ((a.bytes[whole] ^ b.bytes[whole]) & mask) == 0);
}

Result<Address> routeSource(const Address& target) {
  const UniqueFd socket(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) {
    return Status::fromErrno("no UDP socket for the route to " + target.toString(), errno);
  }
  // Connecting a UDP socket only chooses its route. Port 0 would be refused by some kernels.
  const Address to = target.port() == 0 ? target.withPort(9) : target;
  if (::connect(socket.get(), to.raw(), to.length) != 0) {
    return Status::fromErrno("no route to " + target.toString(), errno);
  }
  Address source;
  socklen_t length = sizeof source.storage;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&source.storage), &length) != 0) {
    return Status::fromErrno("no local address for " + target.toString(), errno);
  }
  return Address::from(source.raw(), length).withPort(0);
}

}  // namespace ringcomm
