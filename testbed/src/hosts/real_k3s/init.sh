#!/bin/sh
# The first process of a host: starts what was enabled before, runs cloud-init once, and takes care of orphans.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
cd /
instance=/var/lib/cloud/instance
if [ -e $instance/boot-finished ]; then
    if [ -e /etc/k3s-service ]; then
        read -r role arguments < /etc/k3s-service
        echo "start $role $(/usr/local/bin/k3s --version | sed -n 's/^k3s version \([^ ]*\).*/\1/p')" > /run/platform/requests
        setsid /usr/local/lib/supervise < /dev/null > /dev/null 2>&1 &
    fi
else
    {
        sh $instance/write-files || echo "the files could not be written"
        sh $instance/runcmd
        outcome=$?
    } > /var/log/cloud-init-output.log 2>&1
    echo $outcome > $instance/boot-finished
fi
while :; do
    sleep 86400 &
    wait $!
done
