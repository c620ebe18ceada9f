#!/bin/sh
# Gets what the tests with real machines need from Debian's packages: programs are installed, what goes into the machines
# is only unpacked, into the folder that is printed. A second run with the same versions does nothing.
set -eu
cache=${XDG_CACHE_HOME:-$HOME/.cache}/slipway/machine
apt="-q -o DPkg::Lock::Timeout=120 -o Acquire::http::Timeout=20 -o Acquire::Retries=1"

programs="qemu-system-x86 qemu-utils seabios grub-common grub-pc-bin e2fsprogs binutils mtools dosfstools ovmf u-boot-qemu
  u-boot-tools systemd-boot-efi"
# Programs that the agent agrees with, or is measured beside, and what disturbs it.
programs="$programs minisign cgpt libubootenv-tool systemd-boot casync fuse3 strace openssh-server"
# The guest: a kernel, systemd and the libraries that it and the agent are linked with.
guest="busybox-static e2fsck-static mount util-linux systemd libsystemd-shared libsystemd0 libc6 libgcc-s1 libmount1 libblkid1
  libselinux1 libpcre2-8-0 libseccomp2 libssl3 libacl1 libcap2 libkmod2 libip4tc2 libgcrypt20 libgpg-error0 liblz4-1
  liblzma5 libzstd1 libapparmor1 libaudit1 libcap-ng0 libcrypt1 libpam0g libcryptsetup12 libfdisk1 libidn2-0 libuuid1
  libdevmapper1.02.1 libudev1 libjson-c5 libsmartcols1 libtinfo6"

# The tests of the image cache and of delivery: a registry, a containerd that runs what was cached, and a file system on which files share
# their bytes.
programs="$programs docker-registry containerd runc btrfs-progs"

missing=
for package in $programs; do
  dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
if [ -n "$missing" ] || [ ! -e "$cache/current/complete" ]; then
  # shellcheck disable=SC2086
  apt-get $apt update >&2
fi
if [ -n "$missing" ]; then
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get $apt install -y --no-install-recommends $missing >&2
fi

# The cloud kernel would be smaller, but has no i6300esb.
kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: //p' | head -n 1)
# shellcheck disable=SC2086
versions=$(apt-cache show --no-all-versions $kernel $guest | sed -n 's/^SHA256: //p' | sort)
folder=$cache/$(printf '%s' "$versions" | sha256sum | cut -c1-16)
if [ ! -e "$folder/complete" ]; then
  rm -rf "$folder"
  mkdir -p "$folder/packages" "$folder/root"
  cd "$folder/packages"
  # shellcheck disable=SC2086
  apt-get $apt download $kernel $guest >&2
  for package in *.deb; do
    dpkg -x "$package" "$folder/root"
  done
  rm -rf "$folder/packages"
  touch "$folder/complete"
fi
ln -sfn "$folder" "$cache/current"
echo "$folder"
