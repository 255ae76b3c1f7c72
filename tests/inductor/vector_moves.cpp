// The program of `test_vector_moves.py`, behind the text of `cpp_prefix.h`.
#include <stdio.h>
#include <sys/mman.h>
using namespace md;

static char* page_end() {
  static char* end = 0;
  if (!end) {
    char* pages = (char*)mmap(0, 3 * 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + 2 * 65536, 65536, PROT_NONE);
    end = pages + 2 * 65536;
  }
  return end;
}
static int wrong = 0;
static void expect(bool good, const char* what, int a, int b, int c) {
  if (!good && wrong++ < 20) printf("%s: %d %d %d\n", what, a, b, c);
}
template <class T> static T number(int i) { return (T)(i * 37 % 113 + 1); }
template <class T> static T* source(int n) {  // n elements, the last one at the end of a page
  T* p = (T*)page_end() - n;
  for (int i = 0; i < n; i++) p[i] = number<T>(i);
  return p;
}

template <class T, int N> static void moves() {
  constexpr int size = sizeof(T);
  for (volatile int m = 1; m <= N; m = m + 1) {
    const int n = m;
    T* p = source<T>(n);
    auto x = n < N || N <= 16 ? ld<N>(p, Some{n}) : ld<N>(p, All{}), whole = n < N ? x : ld<N>(p, All{});
    for (int i = 0; i < N; i++) expect(x[i] == whole[i] && x[i] == (i < n ? number<T>(i) : (T)0), "load", size, n, i);
    T out[N + 2];
    for (int i = 0; i < N + 2; i++) out[i] = (T)99;
    V<T, N> y;
    for (int i = 0; i < N; i++) y[i] = number<T>(i);
    if (n < N || N <= 16) st(out + 1, y, Some{n});
    else st(out + 1, y, All{});
    for (int i = -1; i <= N; i++)
      expect(out[i + 1] == (i >= 0 && i < n ? number<T>(i) : (T)99), "store", size, n, i);
    st(out, y, All{});
    for (int i = 0; i < N; i++) expect(out[i] == number<T>(i), "store all", size, N, i);
  }
}
template <class T, int N, int STEP> static void steps() {
  for (volatile int m = 1; m <= N; m = m + 1) {
    const int n = m;
    T* p = source<T>((n - 1) * STEP + 1);
    auto x = n < N ? ld_step<N, STEP>(p, Some{n}) : ld_step<N, STEP>(p, All{});
    auto at = [&](int i) { return p + i * STEP; };
    auto y = n < N ? gather<N, T>(Some{n}, at) : gather<N, T>(All{}, at);
    for (int i = 0; i < n; i++) {
      expect(x[i] == number<T>(i * STEP), "step", sizeof(T), STEP * 100 + n, i);
      expect(y[i] == number<T>(i * STEP), "gather", sizeof(T), STEP * 100 + n, i);
    }
  }
}
template <class T, int N> static void fields() {
  V<T, N> a, b, c, d;
  for (int i = 0; i < N; i++)
    a[i] = number<T>(4 * i), b[i] = number<T>(4 * i + 1), c[i] = number<T>(4 * i + 2), d[i] = number<T>(4 * i + 3);
  for (volatile int m = 1; m <= N; m = m + 1) {
    const int n = m;
    T two[2 * N + 1], four[4 * N + 1];
    for (auto& t : two) t = (T)99;
    for (auto& t : four) t = (T)99;
    if (n < N) st_fields(two, Some{n}, a, b), st_fields(four, Some{n}, a, b, c, d);
    else st_fields(two, All{}, a, b), st_fields(four, All{}, a, b, c, d);
    for (int i = 0; i <= 2 * N; i++)
      expect(two[i] == (i < 2 * n ? number<T>(4 * (i / 2) + i % 2) : (T)99), "two fields", sizeof(T), n, i);
    for (int i = 0; i <= 4 * N; i++)
      expect(four[i] == (i < 4 * n ? number<T>(i) : (T)99), "four fields", sizeof(T), n, i);
  }
}
template <class T, int N> static void repeats() {
  for (volatile int m = 1; m <= N; m = m + 1) {
    const int n = m;
    auto two = n < N ? ld_repeat<N, 2>(source<T>((n + 1) / 2), Some{n}) : ld_repeat<N, 2>(source<T>(N / 2), All{});
    auto four = n < N ? ld_repeat<N, 4>(source<T>((n + 3) / 4), Some{n}) : ld_repeat<N, 4>(source<T>(N / 4), All{});
    for (int i = 0; i < n; i++)
      expect(two[i] == number<T>(i / 2) && four[i] == number<T>(i / 4), "repeat", sizeof(T), n, i);
  }
}
template <class T, int N> static void masked() {
  for (volatile int m = 1; m <= N; m = m + 1) {
    const u32 patterns[] = {0u, 1u, 0xffffffffu, 0x5a5a5a5au, 0x0000fffeu, 0xc3c3c3c3u};
    for (u32 bits : patterns) {
      const int n = m;
      V<i32, N> mask;
      int last = -1;
      for (int i = 0; i < N; i++) {
        mask[i] = -(i32)(bits >> i & 1);
        if (mask[i] && i < n) last = i;
      }
      expect((lane_bits(mask) ^ bits) << (32 - N) == 0, "bits", N, n, (int)bits);
      T* p = source<T>(last + 1);
      auto x = n < N ? ld_if<N, T>(mask, p, Some{n}) : ld_if<N, T>(mask, p, All{});
      for (int i = 0; i < n; i++)
        expect(x[i] == (mask[i] ? number<T>(i) : (T)0), "load if", sizeof(T), n, i);
      p = source<T>(last * 2 + 1);
      auto y = n < N ? ld_step_if<N, 2>(mask, p, Some{n}) : ld_step_if<N, 2>(mask, p, All{});
      for (int i = 0; i < n; i++)
        expect(y[i] == (mask[i] ? number<T>(2 * i) : (T)0), "step if", sizeof(T), n, i);
    }
  }
}
template <class T, int N> static void turns() {
  for (volatile int rows = 1; rows <= N; rows = rows + 1)
    for (volatile int columns = 1; columns <= N; columns = columns + 1) {
      T* p = source<T>((rows - 1) * 50 + columns);
      V<T, N> x[N];
      ld_turned<N>(x, p, 50, rows, columns);
      for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
          expect(x[c][r] == number<T>(r * 50 + c), "turn", sizeof(T), r, c);
    }
}
template <class From, class To, int N> static void converts() {
  const i64 values[] = {0, 1, -1, 127, -128, 128, 255, 256, -129, 32767, -32768, 65535, 65536, -40000,
                        2147483647, -2147483648ll, 4294967295ll, 4294967296ll, -5000000000ll, 1234567890123ll};
  for (int first = 0; first < 20; first++) {
    V<From, N> x;
    for (int i = 0; i < N; i++) x[i] = (From)values[(first + i) % 20];
    auto y = convert<To>(x);
    for (int i = 0; i < N; i++)
      expect(y[i] == (To)x[i], "convert", sizeof(From) * 10 + sizeof(To), N, first + i);
  }
}
template <class From, int N> static void converts_from() {
  converts<From, i8, N>(), converts<From, u8, N>(), converts<From, i16, N>(), converts<From, i32, N>();
  if constexpr (N * 8 <= BYTES) converts<From, i64, N>();
}
template <class T, int N> static void all_of() {
  moves<T, N>();
  steps<T, N, 2>(), steps<T, N, 3>(), steps<T, N, 4>(), steps<T, N, 5>(), steps<T, N, 8>();
  masked<T, N>(), fields<T, N>();
  turns<T, N>();
}
template <int N> static void masks() {
  for (int first = 0; first < 9; first++) {
    V<double, N> a, b;
    V<float, N> c;
    for (int i = 0; i < N; i++) a[i] = (first + i) * 5 % 7, b[i] = 3, c[i] = (first + i) % 3 ? 1 : -1;
    V<i32, N> less = mask(a < b), above = mask(c > 0);
    auto chosen = select(less, a, b);
    auto bytes = to_bytes(above);
    auto back = from_bytes(bytes);
    for (int i = 0; i < N; i++) {
      expect(less[i] == -(a[i] < b[i]) && chosen[i] == (a[i] < b[i] ? a[i] : b[i]), "select", N, first, i);
      expect(bytes[i] == (c[i] > 0) && back[i] == above[i], "bools", N, first, i);
    }
  }
}
template <int N> static void halves() {
  V<float, N> x;
  for (int first = -300; first < 300; first += N) {
    for (int i = 0; i < N; i++) x[i] = (first + i) * 1.0078125f + (first == 0 && i == 1 ? __builtin_nanf("") : 0);
    auto b = to_bfloat(x), h = to_half(x);
    auto wide = from_bfloat(b), half = from_half(h);
    for (int i = 0; i < N; i++) {
      expect(b[i] == to_bfloat((float)x[i]) || x[i] != x[i], "to bfloat", N, first, i);
      expect(h[i] == to_half((float)x[i]) || x[i] != x[i], "to half", N, first, i);
      expect(wide[i] == from_bfloat((u16)b[i]) || x[i] != x[i], "bfloat", N, first, i);
      expect(half[i] == from_half((u16)h[i]) || x[i] != x[i], "half", N, first, i);
    }
  }
}
template <class T, int N> static void arithmetic() {
  V<T, N> a, b, c;
  for (int i = 0; i < N; i++) a[i] = (T)(i * 1.37 - 2.5), b[i] = (T)(2.25 - i), c[i] = (T)(0.1 * i);
  auto f = fma(a, b, c), s = sqrt(c), r = floor(a), e = round_even(a), l = larger(a, b), m = smaller(a, b);
  for (int i = 0; i < N; i++) {
    T product = sizeof(T) == 4 ? __builtin_fmaf(a[i], b[i], c[i]) : __builtin_fma(a[i], b[i], c[i]);
    expect(f[i] == product && s[i] * s[i] - c[i] < 1e-6 && c[i] - s[i] * s[i] < 1e-6, "fma", sizeof(T), N, i);
    expect(r[i] == (T)__builtin_floor(a[i]) && e[i] == (T)__builtin_rint(a[i]), "round", sizeof(T), N, i);
    expect(l[i] == (a[i] > b[i] ? a[i] : b[i]) && m[i] == (a[i] < b[i] ? a[i] : b[i]), "larger", sizeof(T), N, i);
  }
}
int main() {
  constexpr int W = BYTES / 4, D = BYTES / 8;  // lanes of floats, of doubles
  all_of<float, W>(), all_of<u16, W>(), all_of<i16, W>(), all_of<u8, W>();
  all_of<double, D>(), all_of<i64, D>(), all_of<float, D>(), all_of<u16, D>(), all_of<u8, D>();
  moves<u8, BYTES>(), moves<i16, BYTES / 2>(), moves<u8, BYTES / 2>();
  fields<u8, BYTES>(), fields<i16, BYTES / 2>(), fields<u8, BYTES / 2>();
  repeats<u8, BYTES>(), repeats<i16, BYTES / 2>(), repeats<float, W>();
  converts_from<i32, W>(), converts_from<i16, W>(), converts_from<i8, W>(), converts_from<u8, W>();
  converts_from<i64, D>(), converts_from<i32, D>(), converts_from<i16, D>();
  converts_from<i8, D>(), converts_from<u8, D>();
  masks<D>(), halves<W>(), halves<D>();
  arithmetic<float, W>(), arithmetic<float, D>(), arithmetic<double, D>(), arithmetic<double, 2>();
  if (!wrong) printf("as expected\n");
  return 0;
}
