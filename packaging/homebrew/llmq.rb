# Of a checkout: brew install --HEAD ./packaging/homebrew/llmq.rb (Linux; the sources compile for macOS, which nobody has run).
class Llmq < Formula
  desc "Quantize, convert and serve language models"
  homepage "file://#{File.expand_path("../..", __dir__)}"
  head File.expand_path("../..", __dir__), using: :git, branch: "main"
  license "Apache-2.0"

  depends_on "pkgconf" => :build
  depends_on "cjson"
  depends_on "curl"
  depends_on "gnutls"
  depends_on "libedit"
  depends_on "libmicrohttpd"
  depends_on :linux
  depends_on "nettle"
  depends_on "openblas"
  depends_on "pcre2"
  depends_on "utf8proc"
  depends_on "xxhash"

  def install
    args = %W[NVCC= PREFIX=#{prefix} LIBDIR=#{lib} INCLUDEDIR=#{include} DATADIR=#{share}]
    system "make", *args, "all", "lib"
    system "make", *args, "install"
  end

  test do
    assert_match "llmq", shell_output("#{bin}/llmq --version")
    system bin/"llmq", "run", "demo", "Once upon a time"
  end
end
