# nix run 'git+file:.?dir=packaging/nix' -- run demo 'Once upon a time'
{
  description = "Quantize, convert and serve language models";

  inputs.nixpkgs.url = "nixpkgs";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      forAll = f: nixpkgs.lib.genAttrs systems (system: f nixpkgs.legacyPackages.${system});
    in
    {
      packages = forAll (pkgs: {
        default = pkgs.stdenv.mkDerivation {
          pname = "llmq";
          version = "0.1.0";
          src = ../..;
          nativeBuildInputs = [ pkgs.pkg-config ];
          buildInputs = with pkgs; [
            cjson curl gnutls lapack-reference libedit libmicrohttpd nettle openblas pcre2 utf8proc xxHash
          ];
          enableParallelBuilding = true;
          makeFlags = [ "NVCC=" "PREFIX=$(out)" ];
          buildFlags = [ "all" "lib" ];
          doInstallCheck = true;
          installCheckPhase = "$out/bin/llmq run demo 'Once upon a time'";
          meta = {
            description = "Quantize, convert and serve language models";
            license = pkgs.lib.licenses.asl20;
            mainProgram = "llmq";
            platforms = systems;
          };
        };
      });
    };
}
