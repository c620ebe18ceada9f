#!/bin/sh
# Installs from Debian's packages what the tests with real machines need. The kernel is unpacked beside, not installed.
set -eu
cache=${1:-$HOME/.cache/slipway/machine}
apt-get install -y -q --no-install-recommends qemu-system-x86 qemu-utils seabios grub-common grub-pc-bin busybox-static \
  e2fsprogs binutils
mkdir -p "$cache/kernel"
cd "$cache"
kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: //p' | head -n 1)
apt-get download "$kernel"
dpkg -x "$kernel"_*.deb kernel
rm -f "$kernel"_*.deb
echo "$cache/kernel"
