#include "base/sha256.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

using namespace ringcomm;

namespace {

std::string hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[std::to_integer<unsigned>(b) >> 4];
    text += kDigits[std::to_integer<unsigned>(b) & 0xF];
  }
  return text;
}

std::string hash(std::string_view text) { return hex(sha256(asBytes(text))); }

std::string mac(std::string_view key, std::string_view text) {
  return hex(hmacSha256(asBytes(key), asBytes(text)));
}

}  // namespace

TEST_CASE("SHA-256 gives the digests of FIPS 180-4") {
  CHECK(hash("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hash("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopq"
             "klmnopqrlmnopqrsmnopqrstnopqrstu") ==
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK(hash(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 does not depend on how the bytes are cut") {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += static_cast<char>(i * 7);
  }
  // Around the block of 64 bytes and the 56 after which the length needs a block of its own.
  for (size_t size = 0; size <= text.size(); ++size) {
    const std::string_view whole = std::string_view(text).substr(0, size);
    const std::string expected = hash(whole);
    for (const size_t piece : {1, 3, 55, 63, 64, 65}) {
      Sha256 digest;
      for (size_t at = 0; at < size; at += piece) {
        digest.update(asBytes(whole.substr(at, piece)));
      }
      CHECK_MESSAGE(hex(digest.finish()) == expected, "size " << size << " piece " << piece);
    }
  }
}

TEST_CASE("HMAC-SHA256 gives the MACs of RFC 4231") {
  CHECK(mac(std::string(20, '\x0b'), "Hi There") ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(mac("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(mac(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counting;
  for (char c = 1; c <= 25; ++c) {
    counting += c;
  }
  CHECK(mac(counting, std::string(50, '\xcd')) ==
        "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK(mac(std::string(20, '\x0c'), "Test With Truncation").substr(0, 32) ==
        "a3b6167473100ee06e0c796c2955552b");
  CHECK(mac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(mac(std::string(131, '\xaa'),
            "This is a test using a larger than block-size key and a larger than block-size data. "
            "The key needs to be hashed before being used by the HMAC algorithm.") ==
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
  CHECK(mac("", "") == "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST_CASE("comparison in constant time finds every single difference") {
  const std::string text = "0123456789abcdef0123456789abcdef";
  CHECK(equalConstantTime(asBytes(text), asBytes(std::string(text))));
  CHECK(equalConstantTime({}, {}));
  CHECK_FALSE(equalConstantTime(asBytes(text), asBytes(text.substr(1))));
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string other = text;
    other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << (bit % 8)));
    CHECK_FALSE(equalConstantTime(asBytes(text), asBytes(other)));
  }
}

TEST_CASE("random bytes fill the whole span and differ from call to call") {
  std::vector<std::byte> a(1000);
  std::vector<std::byte> b(1000);
  REQUIRE(randomBytes(a).ok());
  REQUIRE(randomBytes(b).ok());
  CHECK(a != b);
  // A run of 20 zero bytes has a chance of 2^-150: it would be a part that was never written.
  const std::vector<std::byte> zeros(20);
  CHECK(std::search(a.begin(), a.end(), zeros.begin(), zeros.end()) == a.end());
  CHECK(randomBytes({}).ok());
}
