#!/bin/sh
# Stands in for k3s' installer: takes the same variables and arguments, finds its releases on the host, and starts the
# service. As with systemd, it ends when k3s says that it is up, or with an error when k3s ends before.
set -e
trap 'status=$?; [ $status = 0 ] || echo "refused $status" > /run/platform/requests' EXIT
# Word splitting is how the installer reads this variable.
set -- $INSTALL_K3S_EXEC "$@"
role=server
[ -z "$K3S_URL" ] || role=agent
case "$1" in
    server | agent) role=$1; shift ;;
esac
if [ "$INSTALL_K3S_SKIP_DOWNLOAD" != true ]; then
    release=/opt/releases/$INSTALL_K3S_VERSION
    if [ -z "$INSTALL_K3S_VERSION" ] || [ ! -x "$release" ]; then
        echo "[ERROR]  Download failed: there is no release '$INSTALL_K3S_VERSION'" >&2
        exit 1
    fi
    ln -sf "$release" /usr/local/bin/k3s
fi
version=$(/usr/local/bin/k3s --version | sed -n 's/^k3s version \([^ ]*\).*/\1/p')
printf '%s\n' "$role $*" > /etc/k3s-service
echo "start $role $version" > /run/platform/requests
setsid /usr/local/lib/supervise < /dev/null > /dev/null 2>&1 &
read -r answer < /run/platform/answers
[ "$answer" = ready ]
