#include "net/candidates.h"

#include "base/sha256.h"
#include "fuzz.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

using namespace ringcomm;
using ringcomm::testing::Fuzz;

namespace {

Address host(const std::string& text, uint16_t port = 0) {
  auto address = Address::parseHost(text, port);
  REQUIRE_MESSAGE(address.ok(), text);
  return *address;
}

InterfaceAddress on(const std::string& interface, const std::string& address, uint8_t prefix) {
  return {interface, {host(address), prefix}};
}

std::vector<InterfaceAddress> machine() {
  return {on("lo", "127.0.0.1", 8),       on("lo", "::1", 128),
          on("eth0", "fe80::1%1", 64),    on("eth0", "2001:db8::5", 64),
          on("eth0", "192.168.1.5", 24),  on("eth1", "10.0.0.5", 16),
          on("eth10", "169.254.7.7", 16), on("docker0", "172.17.0.1", 16)};
}

std::string join(const std::vector<Candidate>& candidates) {
  std::string text;
  for (const Candidate& candidate : candidates) {
    text += (text.empty() ? "" : " ") + candidate.address.hostString();
  }
  return text;
}

std::string join(const std::vector<Address>& addresses) {
  std::string text;
  for (const Address& address : addresses) {
    text += (text.empty() ? "" : " ") + address.hostString();
  }
  return text;
}

std::string chosen(const std::string& interfaces, const std::string& preferred = "10.9.9.9") {
  const auto result = chooseCandidates(
      machine(), {.port = 4000, .interfaces = interfaces, .routeTo = ""}, host(preferred));
  return result.ok() ? join(result.value()) : "error: " + result.status().message();
}

Candidates rankOn(const std::string& machineName, uint64_t netNamespace,
                  const std::vector<std::pair<std::string, uint8_t>>& addresses) {
  Candidates result;
  result.host = {machineName, "boot-of-" + machineName, netNamespace};
  for (const auto& [address, prefix] : addresses) {
    result.addresses.push_back({host(address, 4000), prefix});
  }
  return result;
}

Candidates sample() {
  return rankOn("node7", 4026531840, {{"192.168.1.5", 24}, {"2001:db8::5", 64}, {"127.0.0.1", 8}});
}

// `bytes` with a check that fits, to reach the rules behind it.
std::string resealed(std::string bytes) {
  bytes.resize(bytes.size() - 8);
  const Digest digest = sha256(asBytes(bytes));
  return bytes.append(reinterpret_cast<const char*>(digest.data()), 8);
}

std::string decodeError(const std::string& bytes) {
  const auto result = decodeCandidates(bytes);
  CHECK_FALSE(result.ok());
  CHECK(result.status().code() == Code::kProtocol);
  return result.status().message();
}

bool has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("addresses are offered with the preferred first and loopback last") {
  CHECK(chosen("") == "192.168.1.5 10.0.0.5 172.17.0.1 2001:db8::5 169.254.7.7 127.0.0.1 ::1");
  CHECK(chosen("", "10.0.0.5") ==
        "10.0.0.5 192.168.1.5 172.17.0.1 2001:db8::5 169.254.7.7 127.0.0.1 ::1");
  CHECK(chosen("", "2001:db8::5") ==
        "2001:db8::5 192.168.1.5 10.0.0.5 172.17.0.1 169.254.7.7 127.0.0.1 ::1");
  CHECK(chosen("", "127.0.0.1") == chosen(""));
  const auto result =
      chooseCandidates(machine(), {.port = 4000, .interfaces = "", .routeTo = ""}, Address());
  REQUIRE(result.ok());
  for (const Candidate& candidate : result.value()) {
    CHECK(candidate.address.port() == 4000);
  }
  CHECK(result.value()[0].prefix == 24);
}

TEST_CASE("the interface filter takes names, starts of names and subnets") {
  CHECK(chosen("eth1") == "10.0.0.5");
  CHECK(chosen("eth1*") == "10.0.0.5 169.254.7.7");
  CHECK(chosen(" eth1 ,eth0 ") == "192.168.1.5 10.0.0.5 2001:db8::5");
  CHECK(chosen("eth*") == "192.168.1.5 10.0.0.5 2001:db8::5 169.254.7.7");
  CHECK(chosen("10.0.0.0/8") == "10.0.0.5");
  CHECK(chosen("2001:db8::/32,lo") == "2001:db8::5 127.0.0.1 ::1");
}

TEST_CASE("a filter that is senseless or fits nothing says what there is") {
  CHECK(
      has(chosen("wlan0"), "interface filter \"wlan0\" fits no address; there are: lo 127.0.0.1"));
  CHECK(has(chosen("wlan0"), "docker0 172.17.0.1"));
  for (const char* filter : {"*", "e*h", "eth0,,eth1", "10.0.0.0/33", "10.0.0.0/0", "10.0.0.0/",
                             "10.0.0/8", "fd00::/129", "10.0.0.0/8x", ","}) {
    CHECK_MESSAGE(has(chosen(filter), "error: interface filter: "), filter);
  }
  CHECK(chooseCandidates({}, {.port = 4000, .interfaces = "", .routeTo = ""}, {}).status().code() ==
        Code::kInvalidArgument);
  CHECK_FALSE(chooseCandidates(machine(), {.port = 0, .interfaces = "", .routeTo = ""}, {}).ok());
}

TEST_CASE("a host with very many addresses offers the best of them and loopback") {
  std::vector<InterfaceAddress> many = {on("lo", "127.0.0.1", 8)};
  for (int i = 1; i <= 200; ++i) {
    many.push_back(on("veth" + std::to_string(i), "10.0.0." + std::to_string(i), 24));
  }
  const auto result =
      chooseCandidates(many, {.port = 1, .interfaces = "", .routeTo = ""}, host("10.0.0.150"));
  REQUIRE(result.ok());
  CHECK(result.value().size() == kMaxCandidates);
  CHECK(result.value().front().address.hostString() == "10.0.0.150");
  CHECK(result.value().back().address.isLoopback());
}

TEST_CASE("ranks of one network stack try loopback first, then everything") {
  const Candidates mine = rankOn("a", 1, {{"192.168.1.5", 24}, {"127.0.0.1", 8}});
  CHECK(join(dialOrder(mine, mine)) == "127.0.0.1 192.168.1.5");
  const Candidates noLoopback = rankOn("a", 1, {{"192.168.1.5", 24}});
  CHECK(join(dialOrder(mine, noLoopback)) == "192.168.1.5");
}

TEST_CASE("loopback is never tried towards another host, namespace or boot") {
  const Candidates mine = rankOn("a", 1, {{"192.168.1.5", 24}, {"127.0.0.1", 8}, {"::1", 128}});
  const std::vector<std::pair<std::string, uint8_t>> theirs = {
      {"127.0.1.1", 8}, {"::1", 128}, {"::ffff:127.0.0.1", 128}, {"192.168.1.6", 24}};
  CHECK(join(dialOrder(mine, rankOn("b", 1, theirs))) == "192.168.1.6");
  CHECK(join(dialOrder(mine, rankOn("a", 2, theirs))) == "192.168.1.6");
  Candidates unknown = rankOn("a", 0, theirs);
  CHECK(join(dialOrder(mine, unknown)) == "192.168.1.6");
  // Cloned machines: one boot id, two names; and no boot id at all.
  unknown = rankOn("b", 1, theirs);
  unknown.host.boot = mine.host.boot;
  CHECK(join(dialOrder(mine, unknown)) == "192.168.1.6");
  Candidates nameless = rankOn("a", 1, {{"192.168.1.5", 24}});
  nameless.host.boot = "";
  CHECK_FALSE(nameless.host.sameHost(nameless.host));
}

TEST_CASE("shared subnets come first, then families that both have") {
  const Candidates mine =
      rankOn("a", 1, {{"192.168.1.5", 24}, {"10.0.0.5", 16}, {"172.17.0.1", 16}});
  const Candidates theirs = rankOn("b", 1,
                                   {{"2001:db8::6", 64},
                                    {"203.0.113.9", 24},
                                    {"172.17.0.1", 16},
                                    {"10.0.3.6", 16},
                                    {"192.168.2.6", 24}});
  // 172.17.0.1 is a bridge on both machines: dialled, it leads back here.
  CHECK(join(dialOrder(mine, theirs)) == "10.0.3.6 203.0.113.9 192.168.2.6 2001:db8::6");
  const Candidates behindNat = rankOn("b", 1, {{"10.0.0.5", 16}});
  CHECK(dialOrder(mine, behindNat).empty());
}

TEST_CASE("candidates survive their encoding") {
  const Candidates sent = sample();
  auto received = decodeCandidates(encodeCandidates(sent));
  REQUIRE(received.ok());
  CHECK(*received == sent);

  Candidates large = rankOn(std::string(300, 'n'), UINT64_MAX, {});
  for (int i = 0; i < 100; ++i) {
    large.addresses.push_back({host("2001:db8::" + std::to_string(i + 1), 65535), 128});
  }
  received = decodeCandidates(encodeCandidates(large));
  REQUIRE(received.ok());
  CHECK(received->addresses.size() == kMaxCandidates);
  CHECK(received->host.name == std::string(255, 'n'));
  CHECK(encodeCandidates(large).size() < 2048);
}

TEST_CASE("candidates are byte for byte as in docs/protocol.md") {
  using namespace std::string_literals;
  Candidates one = rankOn("n", 0x0102, {{"1.2.3.4", 24}});
  one.host.boot = "bb";
  const std::string bytes = encodeCandidates(one);
  CHECK(bytes.substr(0, bytes.size() - 8) ==
        "RCA\x01\x01n\x02"
        "bb\x02\x01\0\0\0\0\0\0\x01\x04\x18\xA0\x0F\x01\x02\x03\x04"s);
  CHECK(resealed(bytes) == bytes);
}

TEST_CASE("broken candidates are refused by the rule that they break") {
  using namespace std::string_literals;
  const std::string good = encodeCandidates(sample());
  CHECK(has(decodeError(""), "do not start"));
  CHECK(has(decodeError("192.168.1.5:4000"), "do not start"));
  CHECK(has(decodeError("RCA\x01"s), "does not fit"));
  CHECK(has(decodeError(good.substr(0, good.size() - 1)), "does not fit"));

  const std::string head = "RCA\x01\0\0\0\0\0\0\0\0\0\0"s;
  const std::string address = "\x04\x18\xA0\x0F\x01\x02\x03\x04"s;
  const auto sealed = [](const std::string& body) { return resealed(body + std::string(8, '-')); };
  CHECK(decodeCandidates(sealed(head + "\x01"s + address)).ok());
  CHECK(has(decodeError(sealed(head + "\0"s)), "0 addresses"));
  CHECK(has(decodeError(sealed(head + "\x41"s + address)), "65 addresses"));
  CHECK(has(decodeError(sealed(head)), "addresses"));
  CHECK(has(decodeError(sealed("RCA\x01\xFFn"s)), "addresses"));
  CHECK(has(decodeError(sealed(head + "\x02"s + address)), "address 1"));
  CHECK(has(decodeError(sealed(head + "\x01"s + address + "x")), "bytes follow"));
  for (const std::string& bad :
       {"\x05\x18\xA0\x0F\x01\x02\x03\x04"s, "\x04\x21\xA0\x0F\x01\x02\x03\x04"s,
        "\x04\x18\0\0\x01\x02\x03\x04"s, "\x04\x18\xA0\x0F\0\0\0\0"s,
        "\x04\x18\xA0\x0F\xE0\0\0\x01"s, "\x06\x40\xA0\x0F\xFE\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\x01"s,
        "\x06\x81\xA0\x0F\x20\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\x01"s}) {
    CHECK(has(decodeError(sealed(head + "\x01"s + bad)), "cannot be dialled"));
  }
}

TEST_CASE("decodeCandidates refuses random and mutated bytes") {
  Fuzz fuzz;
  INFO("seed " << fuzz.seed());
  const std::string good = encodeCandidates(sample());
  int accepted = 0;
  while (fuzz.more()) {
    const std::string bad =
        fuzz.below(4) == 0 ? "RCA\x01" + fuzz.bytes(fuzz.below(200)) : fuzz.mutate(good);
    accepted += decodeCandidates(bad).ok() ? 1 : 0;
  }
  CHECK(fuzz.tries() > 1000);
  CHECK(accepted == 0);
}

TEST_CASE("decodeCandidates gives only what can be dialled, also behind a check that fits") {
  Fuzz fuzz;
  INFO("seed " << fuzz.seed());
  const std::string good = encodeCandidates(sample());
  int accepted = 0;
  while (fuzz.more()) {
    std::string bad = fuzz.mutate(good);
    bad = resealed(bad.size() < 8 ? std::string(8, 'x') : bad);
    const auto result = decodeCandidates(bad);
    if (result.ok()) {
      ++accepted;
      REQUIRE(result.value().addresses.size() <= kMaxCandidates);
      REQUIRE(encodeCandidates(result.value()) == bad);
    }
  }
  CHECK(accepted > 100);
}

TEST_CASE("this process finds itself") {
  const auto found = listInterfaceAddresses();
  REQUIRE(found.ok());
  CHECK(std::any_of(found.value().begin(), found.value().end(), [](const InterfaceAddress& entry) {
    return entry.interface == "lo" && entry.candidate.address.hostString() == "127.0.0.1" &&
           entry.candidate.prefix == 8;
  }));
  const HostId id = HostId::ofThisProcess();
  CHECK(id.sameNetwork(HostId::ofThisProcess()));
  auto mine = localCandidates({.port = 4000, .interfaces = "lo", .routeTo = "not-an-address"});
  REQUIRE(mine.ok());
  CHECK(mine->host == id);
  const std::vector<Address> order = dialOrder(*mine, *decodeCandidates(encodeCandidates(*mine)));
  REQUIRE_FALSE(order.empty());
  CHECK(order[0].toString() == "127.0.0.1:4000");
}

TEST_CASE("the address on the route to the store is offered first") {
  const auto all = localCandidates({.port = 4000, .interfaces = "", .routeTo = ""});
  REQUIRE(all.ok());
  for (const Candidate& candidate : all.value().addresses) {
    if (candidate.address.isLoopback()) {
      continue;
    }
    // A host's route to its own address starts at that address.
    const auto routed = localCandidates(
        {.port = 4000, .interfaces = "", .routeTo = candidate.address.hostString()});
    REQUIRE(routed.ok());
    CHECK(routed.value().addresses.front().address.sameHost(candidate.address));
  }
}
