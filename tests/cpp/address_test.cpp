#include "net/address.h"

#include <doctest/doctest.h>

#include <string>

#include <net/if.h>
#include <netinet/in.h>

using namespace ringcomm;

namespace {

Address at(const std::string& text) {
  auto address = Address::parse(text);
  REQUIRE_MESSAGE(address.ok(), text << ": " << address.status().message());
  return *address;
}

}  // namespace

TEST_CASE("an address survives its text") {
  for (const char* text : {"1.2.3.4:80", "0.0.0.0:0", "255.255.255.255:65535", "[::1]:80",
                           "[2001:db8::5]:29500", "[::ffff:1.2.3.4]:1", "[fe80::1%1]:9"}) {
    CHECK(at(text).toString() == text);
    CHECK(at(at(text).toString()) == at(text));
  }
  CHECK(at("[FE80:0:0::0:1%lo]:9").toString() ==
        "[fe80::1%" + std::to_string(if_nametoindex("lo")) + "]:9");
  CHECK(at("1.2.3.4:80").family() == AF_INET);
  CHECK(at("1.2.3.4:80").length == sizeof(sockaddr_in));
  CHECK(at("[::1]:80").family() == AF_INET6);
  CHECK(at("[::1]:80").length == sizeof(sockaddr_in6));
  CHECK(at("1.2.3.4:80").withPort(443).toString() == "1.2.3.4:443");
  CHECK(at("[::1]:80").withPort(443).port() == 443);
  CHECK(Address().empty());
  CHECK(Address().toString() == "(no address)");
}

TEST_CASE("what is no numeric address with a port is refused, with its text") {
  for (const char* text : {"",
                           ":",
                           "80",
                           "1.2.3.4",
                           "1.2.3.4:",
                           "1.2.3.4:x",
                           "1.2.3.4:65536",
                           "1.2.3.4:-1",
                           "1.2.3.4: 80",
                           "1.2.3:80",
                           "01.2.3.4.5:80",
                           "localhost:80",
                           "::1:80",
                           "[::1]",
                           "[::1]80",
                           "[1.2.3.4]:80",
                           "[::1:80",
                           "[fe80::1%no-such-if]:80",
                           "[fe80::1%]:80",
                           "[]:80",
                           "1.2.3.4:80:90"}) {
    const auto address = Address::parse(text);
    CHECK_MESSAGE(!address.ok(), text);
    CHECK(address.status().code() == Code::kInvalidArgument);
  }
  CHECK(Address::parse("localhost:80").status().message().find("localhost") != std::string::npos);
  CHECK_FALSE(Address::parseHost(std::string("1.2.3.4\0x", 9), 1).ok());
}

TEST_CASE("a host alone is parsed with and without brackets") {
  CHECK(Address::parseHost("10.0.0.1", 5)->toString() == "10.0.0.1:5");
  CHECK(Address::parseHost("::1", 5)->toString() == "[::1]:5");
  CHECK(Address::parseHost("[::1]", 5)->toString() == "[::1]:5");
  CHECK(Address::parseHost("::1", 5)->hostString() == "::1");
}

TEST_CASE("addresses are classified") {
  for (const char* text : {"127.0.0.1:1", "127.255.0.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"}) {
    CHECK_MESSAGE(at(text).isLoopback(), text);
  }
  for (const char* text : {"128.0.0.1:1", "[::2]:1", "[::ffff:10.0.0.1]:1", "0.0.0.0:1"}) {
    CHECK_MESSAGE(!at(text).isLoopback(), text);
  }
  CHECK(at("169.254.3.4:1").isLinkLocal());
  CHECK(at("[fe80::1]:1").isLinkLocal());
  CHECK(at("[febf::1]:1").isLinkLocal());
  CHECK_FALSE(at("[fec0::1]:1").isLinkLocal());
  CHECK_FALSE(at("169.253.3.4:1").isLinkLocal());
  CHECK(at("0.0.0.0:1").isUnspecified());
  CHECK(at("[::]:1").isUnspecified());
  CHECK_FALSE(Address().isUnspecified());
  CHECK(at("224.0.0.1:1").isMulticast());
  CHECK(at("255.255.255.255:1").isMulticast());
  CHECK(at("[ff02::1]:1").isMulticast());
  CHECK_FALSE(at("223.255.255.255:1").isMulticast());
}

TEST_CASE("an IPv4 address mapped into IPv6 is taken out, any other stays as it is") {
  const Address plain = at("[::ffff:192.168.77.10]:32822").unmapped();
  CHECK(plain.toString() == "192.168.77.10:32822");
  CHECK(plain == at("192.168.77.10:32822"));
  CHECK(plain.length == sizeof(sockaddr_in));
  for (const char* text :
       {"1.2.3.4:80", "[::1]:80", "[::]:80", "[::fffe:1.2.3.4]:1", "[fe80::1%1]:9"}) {
    CHECK(at(text).unmapped() == at(text));
  }
  CHECK(Address().unmapped().empty());
}

TEST_CASE("addresses are equal by host, scope and port") {
  CHECK(at("1.2.3.4:80") == at("1.2.3.4:80"));
  CHECK_FALSE(at("1.2.3.4:80") == at("1.2.3.4:81"));
  CHECK(at("1.2.3.4:80").sameHost(at("1.2.3.4:81")));
  CHECK_FALSE(at("[fe80::1%1]:1").sameHost(at("[fe80::1%2]:1")));
  CHECK_FALSE(at("0.0.0.0:1").sameHost(at("[::]:1")));
}

TEST_CASE("subnets are compared bit by bit") {
  CHECK(inSubnet(at("10.1.2.3:1"), at("10.1.9.9:2"), 16));
  CHECK_FALSE(inSubnet(at("10.1.2.3:1"), at("10.2.9.9:2"), 16));
  CHECK(inSubnet(at("10.1.2.3:1"), at("10.1.3.3:1"), 23));
  CHECK_FALSE(inSubnet(at("10.1.2.3:1"), at("10.1.3.3:1"), 24));
  CHECK(inSubnet(at("10.1.2.3:1"), at("10.1.2.3:1"), 32));
  CHECK_FALSE(inSubnet(at("10.1.2.3:1"), at("10.1.2.2:1"), 32));
  CHECK_FALSE(inSubnet(at("10.1.2.3:1"), at("10.1.2.3:1"), 33));
  CHECK_FALSE(inSubnet(at("10.1.2.3:1"), at("10.1.2.3:1"), 0));
  CHECK(inSubnet(at("[fd00::1]:1"), at("[fd00::2]:1"), 64));
  CHECK_FALSE(inSubnet(at("[fd00::1]:1"), at("[fd00::2]:1"), 127));
  CHECK(inSubnet(at("[fd00::1]:1"), at("[fd00::1]:1"), 128));
  CHECK_FALSE(inSubnet(at("[fd00::1]:1"), at("10.0.0.1:1"), 8));
}

TEST_CASE("socket addresses that are too short or of another family give an empty address") {
  const Address v4 = at("1.2.3.4:80");
  const Address v6 = at("[::1]:80");
  CHECK(Address::from(v4.raw(), sizeof(sockaddr_in)) == v4);
  CHECK(Address::from(v6.raw(), sizeof(sockaddr_storage)) == v6);
  CHECK(Address::from(v4.raw(), sizeof(sockaddr_in) - 1).empty());
  CHECK(Address::from(v6.raw(), sizeof(sockaddr_in6) - 1).empty());
  CHECK(Address::from(nullptr, 100).empty());
  sockaddr_storage other{};
  other.ss_family = AF_UNIX;
  CHECK(Address::from(reinterpret_cast<const sockaddr*>(&other), sizeof other).empty());
}

TEST_CASE("the route to a loopback address starts at a loopback address") {
  auto source = routeSource(at("127.0.0.1:29500"));
  REQUIRE(source.ok());
  CHECK(source->toString() == "127.0.0.1:0");
  CHECK(routeSource(at("127.0.0.1:0")).ok());
  CHECK(routeSource(Address()).status().code() == Code::kSystem);
}
