# Runs in network, mount and host name namespaces of its own that end with it. Arguments: the disk, the folder for
# logs, the host's name, its address, the other end of its cable, the process in whose network the switch is, and the
# switch's address; then pairs of a version and its program.
set -e
root=$1 logs=$2 name=$3 address=$4 cable=$5 switch=$6 gateway=$7
shift 7
hostname "$name"
ip link set lo up
# The kernel takes its time to throw away the cable of a host that lost power.
nsenter --net="/proc/$switch/ns/net" ip link delete "$cable" 2> /dev/null || true
ip link add eth0 type veth peer name "$cable" netns "$switch"
nsenter --net="/proc/$switch/ns/net" ip link set "$cable" master hub up
ip addr add "$address/8" dev eth0
ip link set eth0 up
ip route add default via "$gateway"

# Nothing that is mounted here is seen by anybody else.
mount --make-rprivate /
mount --rbind /usr "$root/usr"
mount -o remount,bind,ro "$root/usr"
mount --bind "$root/local" "$root/usr/local"
for part in bin sbin lib lib32 lib64 libx32; do
    if [ -L "/$part" ]; then
        [ -L "$root/$part" ] || cp -P "/$part" "$root/$part"
    elif [ -d "/$part" ]; then
        mkdir -p "$root/$part"
        mount --rbind "/$part" "$root/$part"
        mount -o remount,bind,ro "$root/$part"
    fi
done
for device in null zero full random urandom tty; do
    [ -e "$root/dev/$device" ] || : > "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
[ -L "$root/dev/stdout" ] || ln -s /proc/self/fd/1 "$root/dev/stdout"
[ -L "$root/dev/stderr" ] || ln -s /proc/self/fd/2 "$root/dev/stderr"
[ -L "$root/dev/fd" ] || ln -s /proc/self/fd "$root/dev/fd"
mount -t sysfs -o ro sysfs "$root/sys"
mount --bind "$logs" "$root/var/log"
while [ $# -gt 1 ]; do
    [ -e "$root/opt/releases/$1" ] || : > "$root/opt/releases/$1"
    mount --bind "$2" "$root/opt/releases/$1"
    shift 2
done

echo network > "$root/run/platform/requests"
read -r answer < "$root/run/platform/answers"
[ "$answer" = ready ]
exec unshare --pid --fork --kill-child --mount-proc="$root/proc" chroot "$root" /bin/sh /usr/local/lib/init
