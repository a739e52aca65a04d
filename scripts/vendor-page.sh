#!/bin/sh
# Fetches the libraries that the page at / is made of from npm, as their packages have them, into
# runtime/api/web/vendor/, and compares each file with the sum below. The build does not need it: the
# files are part of the repository. To take a newer version, change its row and run this.
#
# usage: sh scripts/vendor-page.sh [--check]
#   --check  only compare the files that are there with the sums
set -eu
cd "$(dirname "$0")/../runtime/api/web/vendor"

# package version file-in-the-package name-here sha256
rows() {
    cat <<'END'
markdown-it 15.0.3 dist/browser/markdown-it.esm.min.mjs markdown-it.esm.min.mjs d5432491790141da046b1197353705db03264f40b5727f3b4b591f5aba193e30
@mdit/plugin-tex 0.24.2 dist/index.js mdit-tex.js 42212ead4ecf6c9850d4f6eeb11075f6485fb5149bdf6e54e36a4f890d37a809
@mdit/plugin-tasklist 0.23.2 dist/index.js mdit-tasklist.js ff1e7a89269db86b363ce1249edb85ad40e37af81e7e97fc54d62dddde0e7fe6
@highlightjs/cdn-assets 11.12.0 es/highlight.min.js highlight.min.js 1ed8fc5256b738b8875b74e4d3f0754f60d6411fb034d618dfbc4e6e6c9999d7
temml 0.13.5 dist/temml.min.js temml.min.js 1ab19148afe0dbc836b7a74f344071b3f3a70a7a8259ae4049e76894fcdf8d95
temml 0.13.5 dist/Temml-Local.css Temml-Local.css 544f4e3fee4c36f4568e4f145fa626dc9573c5f4c96c523aadcc433c3989a239
temml 0.13.5 dist/Temml.woff2 Temml.woff2 fc70501355ae6d38ff0b80f825af153557d5f2f474198d6b9b7dd2d3a291a0cc
END
}

if [ "${1-}" != --check ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    rows | while read -r package version file name _; do
        folder=$work/$(echo "$package" | tr '/@' '__')
        if [ ! -d "$folder" ]; then
            mkdir "$folder"
            (cd "$folder" && npm pack --silent "$package@$version" >/dev/null && tar xzf ./*.tgz)
        fi
        cp "$folder/package/$file" "$name"
    done
fi
rows | while read -r _ _ _ name sum; do echo "$sum  $name"; done | sha256sum -c --quiet -
echo "the page's libraries are those of the table"
