#include "net/candidates.h"

#include "base/sha256.h"
#include "net/wire.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <memory>

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

namespace ringcomm {
namespace {

// The store's value: magic and layout, host, addresses, and the first bytes of the SHA-256 of all
// that: a value cut short or of something else is told as such, not dialled.
constexpr std::string_view kMagic = "RCA\x01";
constexpr size_t kCheckBytes = 8;
constexpr size_t kMaxHostText = 255;

std::string firstLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  line.resize(std::min(line.size(), kMaxHostText));
  return line;
}

unsigned familyBits(const Address& address) noexcept {
  return address.family() == AF_INET ? 32 : 128;
}

// The bits of a netmask, which are contiguous in every mask that a kernel hands out.
uint8_t prefixOf(const sockaddr* mask, int family) noexcept {
  if (mask == nullptr) {
    return 0;
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(mask);
  const size_t at =
      family == AF_INET ? offsetof(sockaddr_in, sin_addr) : offsetof(sockaddr_in6, sin6_addr);
  const size_t size = family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr);
  int bits = 0;
  for (size_t i = 0; i < size; ++i) {
    bits += std::popcount(bytes[at + i]);
  }
  return static_cast<uint8_t>(bits);
}

std::string_view trimmed(std::string_view text) noexcept {
  const size_t first = text.find_first_not_of(" \t");
  const size_t last = text.find_last_not_of(" \t");
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, last - first + 1);
}

// One entry of CandidateOptions::interfaces.
struct Filter {
  std::string name;
  bool prefix = false;
  Candidate subnet;  // set when its prefix is not 0

  bool fits(const InterfaceAddress& found) const noexcept {
    if (subnet.prefix != 0) {
      return inSubnet(found.candidate.address, subnet.address, subnet.prefix);
    }
    return prefix ? found.interface.starts_with(name) : found.interface == name;
  }
};

Result<Filter> parseFilter(std::string_view entry) {
  Filter filter;
  const size_t slash = entry.find('/');
  if (slash != std::string_view::npos) {
    auto address = Address::parseHost(entry.substr(0, slash), 0);
    const std::string_view bits = entry.substr(slash + 1);
    const auto [end, error] =
        std::from_chars(bits.data(), bits.data() + bits.size(), filter.subnet.prefix);
    if (!address || error != std::errc() || end != bits.data() + bits.size() ||
        filter.subnet.prefix == 0 || filter.subnet.prefix > familyBits(*address)) {
      return Status(Code::kInvalidArgument,
                    "\"" + std::string(entry) + "\" is no subnet (10.1.0.0/16, fd00::/8)");
    }
    filter.subnet.address = *address;
    return filter;
  }
  filter.prefix = entry.ends_with('*');
  filter.name = entry.substr(0, entry.size() - (filter.prefix ? 1 : 0));
  if (filter.name.empty() || filter.name.find('*') != std::string::npos) {
    return Status(Code::kInvalidArgument, "\"" + std::string(entry) +
                                              "\" is no interface name, start of one (eth*), or "
                                              "subnet (10.1.0.0/16)");
  }
  return filter;
}

Result<std::vector<Filter>> parseFilters(std::string_view list) {
  std::vector<Filter> filters;
  while (!trimmed(list).empty()) {
    const size_t comma = list.find(',');
    auto filter = parseFilter(trimmed(list.substr(0, comma)));
    RC_RETURN_IF_ERROR(filter.status());
    filters.push_back(std::move(*filter));
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
  }
  return filters;
}

// Smaller is offered earlier.
int preference(const Address& address, const Address& preferred) noexcept {
  if (address.isLoopback()) {
    return 4;
  }
  if (address.sameHost(preferred)) {
    return 0;
  }
  if (address.isLinkLocal()) {
    return 3;
  }
  return address.family() == AF_INET ? 1 : 2;
}

bool canBeOffered(const Address& address) noexcept {
  const bool scoped = address.family() == AF_INET6 && address.isLinkLocal();
  return !address.empty() && !scoped && !address.isUnspecified() && !address.isMulticast();
}

std::string listed(const std::vector<InterfaceAddress>& found) {
  std::string text;
  for (const InterfaceAddress& entry : found) {
    text +=
        (text.empty() ? "" : ", ") + entry.interface + " " + entry.candidate.address.hostString();
  }
  return text.empty() ? "none" : text;
}

// Reads fields from the front; any read beyond the end makes it bad for good.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  std::string_view take(size_t size) noexcept {
    bad_ = bad_ || size > rest_.size();
    if (bad_) {
      return {};
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  template <typename T>
  T number() noexcept {
    const std::string_view bytes = take(sizeof(T));
    return bad_ ? T{} : loadLittle<T>(asBytes(bytes).data());
  }

  bool bad() const noexcept { return bad_; }
  bool atEnd() const noexcept { return !bad_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool bad_ = false;
};

template <typename T>
void append(std::string& to, T value) {
  std::array<std::byte, sizeof(T)> bytes;
  storeLittle(bytes.data(), value);
  to.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void appendText(std::string& to, std::string_view text) {
  text = text.substr(0, kMaxHostText);
  append(to, static_cast<uint8_t>(text.size()));
  to += text;
}

void appendCandidate(std::string& to, const Candidate& candidate) {
  const Address& address = candidate.address;
  append(to, static_cast<uint8_t>(address.family() == AF_INET ? 4 : 6));
  append(to, candidate.prefix);
  append(to, address.port());
  if (address.family() == AF_INET) {
    const auto& bytes = reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr;
    to.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  } else {
    const auto& bytes = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
    to.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  }
}

Candidate readCandidate(Reader& in) {
  Candidate candidate;
  const auto family = in.number<uint8_t>();
  candidate.prefix = in.number<uint8_t>();
  const auto port = in.number<uint16_t>();
  if (family == 4) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    const std::string_view bytes = in.take(sizeof to.sin_addr);
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(&to.sin_addr));
    candidate.address = Address::from(reinterpret_cast<const sockaddr*>(&to), sizeof to);
  } else if (family == 6) {
    sockaddr_in6 to{};
    to.sin6_family = AF_INET6;
    const std::string_view bytes = in.take(sizeof to.sin6_addr);
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(&to.sin6_addr));
    candidate.address = Address::from(reinterpret_cast<const sockaddr*>(&to), sizeof to);
  }
  candidate.address = candidate.address.withPort(port);
  return candidate;
}

std::string checkOf(std::string_view body) {
  const Digest digest = sha256(asBytes(body));
  return {reinterpret_cast<const char*>(digest.data()), kCheckBytes};
}

Status badCandidates(const std::string& what) {
  return {Code::kProtocol, "bad candidates: " + what};
}

}  // namespace

HostId HostId::ofThisProcess() {
  HostId id;
  std::array<char, kMaxHostText + 1> name{};
  if (::gethostname(name.data(), name.size() - 1) == 0) {
    id.name = name.data();
  }
  id.boot = firstLine("/proc/sys/kernel/random/boot_id");
  if (id.boot.empty()) {
    id.boot = firstLine("/etc/machine-id");
  }
  struct stat info{};
  if (::stat("/proc/self/ns/net", &info) == 0) {
    id.netNamespace = info.st_ino;
  }
  return id;
}

bool HostId::sameHost(const HostId& other) const noexcept {
  return !boot.empty() && boot == other.boot && name == other.name;
}

bool HostId::sameNetwork(const HostId& other) const noexcept {
  return sameHost(other) && netNamespace != 0 && netNamespace == other.netNamespace;
}

Result<std::vector<InterfaceAddress>> listInterfaceAddresses() {
  ifaddrs* head = nullptr;
  if (::getifaddrs(&head) != 0) {
    return Status::fromErrno("getifaddrs", errno);
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(head, &::freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = head; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) {
      continue;
    }
    const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    found.push_back(
        {entry->ifa_name,
         {Address::from(entry->ifa_addr, bytes), prefixOf(entry->ifa_netmask, family)}});
  }
  return found;
}

Result<std::vector<Candidate>> chooseCandidates(const std::vector<InterfaceAddress>& found,
                                                const CandidateOptions& options,
                                                const Address& preferred) {
  if (options.port == 0) {
    return Status(Code::kInvalidArgument, "candidates need the listener's port, got 0");
  }
  auto filters = parseFilters(options.interfaces);
  RC_RETURN_IF_ERROR(filters.status().prefixed("interface filter: "));
  std::vector<Candidate> chosen;
  for (const InterfaceAddress& entry : found) {
    const bool fits =
        filters->empty() || std::any_of(filters->begin(), filters->end(),
                                        [&](const Filter& f) { return f.fits(entry); });
    if (fits && canBeOffered(entry.candidate.address)) {
      chosen.push_back({entry.candidate.address.withPort(options.port), entry.candidate.prefix});
    }
  }
  if (chosen.empty()) {
    const std::string why = filters->empty()
                                ? "no interface that is up has an address"
                                : "interface filter \"" + options.interfaces + "\" fits no address";
    return Status(Code::kInvalidArgument, why + "; there are: " + listed(found));
  }
  std::stable_sort(chosen.begin(), chosen.end(), [&](const Candidate& a, const Candidate& b) {
    return preference(a.address, preferred) < preference(b.address, preferred);
  });
  // Loopback comes last and must survive the cut: it is the only address some hosts share.
  if (chosen.size() > kMaxCandidates) {
    chosen.erase(chosen.begin() + kMaxCandidates - 1, chosen.end() - 1);
  }
  return chosen;
}

Result<Candidates> localCandidates(const CandidateOptions& options) {
  auto found = listInterfaceAddresses();
  RC_RETURN_IF_ERROR(found.status());
  Address preferred;
  if (auto target = Address::parseHost(options.routeTo, 0); target.ok()) {
    if (auto source = routeSource(*target); source.ok()) {
      preferred = *source;
    }
  }
  auto chosen = chooseCandidates(*found, options, preferred);
  RC_RETURN_IF_ERROR(chosen.status());
  return Candidates{HostId::ofThisProcess(), std::move(*chosen)};
}

std::string encodeCandidates(const Candidates& candidates) {
  std::string bytes(kMagic);
  appendText(bytes, candidates.host.name);
  appendText(bytes, candidates.host.boot);
  append(bytes, candidates.host.netNamespace);
  const size_t count = std::min(candidates.addresses.size(), kMaxCandidates);
  append(bytes, static_cast<uint8_t>(count));
  for (size_t i = 0; i < count; ++i) {
    appendCandidate(bytes, candidates.addresses[i]);
  }
  return bytes + checkOf(bytes);
}

Result<Candidates> decodeCandidates(std::string_view bytes) {
  if (!bytes.starts_with(kMagic)) {
    return badCandidates("they do not start with \"RCA\" and layout 1");
  }
  if (bytes.size() < kMagic.size() + kCheckBytes ||
      bytes.substr(bytes.size() - kCheckBytes) !=
          checkOf(bytes.substr(0, bytes.size() - kCheckBytes))) {
    return badCandidates("the check at the end of the " + std::to_string(bytes.size()) +
                         " bytes does not fit");
  }
  Reader in(bytes.substr(0, bytes.size() - kCheckBytes));
  in.take(kMagic.size());
  Candidates result;
  result.host.name = in.take(in.number<uint8_t>());
  result.host.boot = in.take(in.number<uint8_t>());
  result.host.netNamespace = in.number<uint64_t>();
  const size_t count = in.number<uint8_t>();
  if (in.bad() || count == 0 || count > kMaxCandidates) {
    return badCandidates(std::to_string(count) + " addresses, where 1 to " +
                         std::to_string(kMaxCandidates) + " are allowed");
  }
  for (size_t i = 0; i < count; ++i) {
    const Candidate candidate = readCandidate(in);
    const Address& address = candidate.address;
    if (in.bad() || !canBeOffered(address) || address.port() == 0 ||
        candidate.prefix > familyBits(address)) {
      return badCandidates("address " + std::to_string(i) + " (" + address.toString() + "/" +
                           std::to_string(candidate.prefix) + ") cannot be dialled");
    }
    result.addresses.push_back(candidate);
  }
  if (!in.atEnd()) {
    return badCandidates("bytes follow the last address");
  }
  return result;
}

std::vector<Address> dialOrder(const Candidates& mine, const Candidates& theirs) {
  const bool sameNetwork = mine.host.sameNetwork(theirs.host);
  const auto rank = [&](const Address& address) {
    if (address.isLoopback()) {
      return 0;
    }
    bool familyKnown = false;
    for (const Candidate& own : mine.addresses) {
      if (!own.address.isLoopback() && inSubnet(address, own.address, own.prefix)) {
        return 1;
      }
      familyKnown =
          familyKnown || (own.address.family() == address.family() && !own.address.isLoopback());
    }
    return familyKnown ? 2 : 3;
  };
  const auto leadsBackHere = [&](const Address& address) {
    return std::any_of(mine.addresses.begin(), mine.addresses.end(),
                       [&](const Candidate& own) { return own.address.sameHost(address); });
  };
  std::vector<Address> order;
  for (const Candidate& candidate : theirs.addresses) {
    const Address& address = candidate.address;
    if (sameNetwork || (!address.isLoopback() && !leadsBackHere(address))) {
      order.push_back(address);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](const Address& a, const Address& b) { return rank(a) < rank(b); });
  return order;
}

}  // namespace ringcomm
