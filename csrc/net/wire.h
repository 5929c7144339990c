#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace ringcomm {

// Integers on the wire are little-endian whatever the host is; on a little-endian host both
// functions compile to one move.
template <typename T>
constexpr T swapToLittle(T value) noexcept {
  static_assert(std::is_unsigned_v<T>);
  if constexpr (std::endian::native == std::endian::big && sizeof(T) > 1) {
    T swapped = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      swapped = static_cast<T>((swapped << 8) | ((value >> (8 * i)) & 0xFF));
    }
    return swapped;
  }
  return value;
}

template <typename T>
void storeLittle(std::byte* to, T value) noexcept {
  const auto bits = swapToLittle(static_cast<std::make_unsigned_t<T>>(value));
  std::memcpy(to, &bits, sizeof bits);
}

template <typename T>
T loadLittle(const std::byte* from) noexcept {
  std::make_unsigned_t<T> bits;
  std::memcpy(&bits, from, sizeof bits);
  return static_cast<T>(swapToLittle(bits));
}

}  // namespace ringcomm
