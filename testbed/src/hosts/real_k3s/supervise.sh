#!/bin/sh
# Keeps the k3s service up as its unit for systemd does: started again five seconds after it ended, each time after what
# drop-ins of the unit have run before it; what they run after it, the platform runs when k3s says that it is up. An
# agent needs a container runtime; the platform joins in its stead.
read -r role arguments < /etc/k3s-service
[ "$role" = server ] || exit 0
while :; do
    sed -n 's/^ExecStartPre=//p' /etc/systemd/system/k3s.service.d/*.conf 2> /dev/null | sh
    # The disk is thrown away with the host, so nobody needs to wait for it.
    NOTIFY_SOCKET=/run/platform/notify /usr/local/bin/k3s server --disable-agent \
        --etcd-arg=unsafe-no-fsync=true $arguments >> /var/log/k3s.log 2>&1
    echo "exited $?" > /run/platform/requests
    sleep 5
done
