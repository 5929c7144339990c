#include "net/control_link.h"

#include "looping.h"
#include "sockets.h"

#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <vector>

#include <sys/socket.h>

using namespace ringcomm;
using namespace ringcomm::testing;
using namespace std::chrono_literals;

namespace {

ControlMessage failureOf(const std::string& text, int rank = 1) {
  return {.kind = ControlKind::kFailure, .code = Code::kPeerLost, .rank = rank, .text = text};
}

ControlMessage goodbye() {
  ControlMessage message;
  message.kind = ControlKind::kGoodbye;
  return message;
}

// One end as a link on the loop, the other as a plain socket.
class Fixture {
 public:
  Fixture() {
    Pair pair = unixPair();
    far = std::move(pair.b);
    loop.run([&] {
      ControlLink::Callbacks callbacks;
      callbacks.message = [this](const ControlMessage& message) {
        messages.push_back(message);
        ++count;
      };
      callbacks.ended = [this](const Status& why) {
        end = why;
        link.reset();  // as the contract allows
        ended = true;
      };
      link = std::make_unique<ControlLink>(*loop, std::move(pair.a), std::move(callbacks));
      REQUIRE(link->start().ok());
    });
  }
  ~Fixture() {
    loop.run([&] { link.reset(); });
  }

  void give(const std::string& bytes) {
    // A full queue takes nothing, or everything a moment later.
    CHECK(eventually(2s, [&] {
      return ::send(far.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
             static_cast<ssize_t>(bytes.size());
    }));
  }

  TestLoop loop;
  UniqueFd far;
  std::unique_ptr<ControlLink> link;
  std::vector<ControlMessage> messages;
  std::atomic<size_t> count{0};
  std::atomic<bool> ended{false};
  Status end;
};

}  // namespace

TEST_CASE("messages arrive whole and in order, byte by byte as well as many at once") {
  Fixture fixture;
  const std::vector<ControlMessage> sent = {failureOf("first"), goodbye(),
                                            failureOf(std::string(2000, 'x'), 3)};
  std::string bytes;
  for (const ControlMessage& message : sent) {
    bytes += encodeControl(message);
  }
  fixture.give(bytes + bytes);
  for (const char byte : bytes) {
    fixture.give(std::string(1, byte));
  }
  REQUIRE(eventually(5s, [&] { return fixture.count == 3 * sent.size(); }));
  fixture.loop.run([&] {
    for (size_t i = 0; i < fixture.messages.size(); ++i) {
      CHECK(fixture.messages[i] == sent[i % sent.size()]);
    }
  });
}

TEST_CASE("what the peer said last is delivered before its end") {
  Fixture fixture;
  fixture.give(encodeControl(failureOf("why")));
  fixture.far.reset();
  REQUIRE(eventually(2s, [&] { return fixture.ended.load(); }));
  fixture.loop.run([&] {
    REQUIRE(fixture.messages.size() == 1);
    CHECK(fixture.messages[0].text == "why");
    CHECK(fixture.end.code() == Code::kPeerLost);
  });
}

TEST_CASE("readNow delivers what has arrived without waiting for the loop's next round") {
  Fixture fixture;
  fixture.loop.run([&] {
    fixture.give(encodeControl(goodbye()));
    CHECK(fixture.messages.empty());
    fixture.link->readNow();
    REQUIRE(fixture.messages.size() == 1);
    CHECK(fixture.messages[0].kind == ControlKind::kGoodbye);
  });
}

TEST_CASE("nonsense ends the link as a protocol error, once") {
  Fixture fixture;
  fixture.give(encodeControl(failureOf("before")) + std::string(64, '\xff'));
  REQUIRE(eventually(2s, [&] { return fixture.ended.load(); }));
  fixture.loop.run([&] {
    CHECK(fixture.messages.size() == 1);
    CHECK(fixture.end.code() == Code::kProtocol);
    CHECK(fixture.link == nullptr);
  });
}

TEST_CASE("what the peer does not read at once is sent when it does") {
  Fixture fixture;
  constexpr int kMessages = 1000;
  fixture.loop.run([&] {
    for (int i = 0; i < kMessages; ++i) {
      fixture.link->send(failureOf(std::string(1500, 'a'), i));
    }
  });
  ControlParser parser;
  int received = 0;
  const bool all = eventually(10s, [&] {
    std::vector<std::byte> buffer(65536);
    const ssize_t got = ::recv(fixture.far.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    std::span<const std::byte> bytes(buffer.data(), got > 0 ? static_cast<size_t>(got) : 0);
    while (true) {
      auto message = parser.next(bytes);
      REQUIRE(message.ok());
      if (!message->has_value()) {
        break;
      }
      CHECK((*message)->rank == received++);
    }
    return received == kMessages;
  });
  CHECK(all);
}

TEST_CASE("sending to a peer that has gone is no error of its own") {
  Fixture fixture;
  fixture.loop.run([&] {
    fixture.far.reset();
    fixture.link->send(failureOf("late"));
    CHECK_FALSE(fixture.ended);
  });
  CHECK(eventually(2s, [&] { return fixture.ended.load(); }));
}
