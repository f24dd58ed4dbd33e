sort -k2,2nr -k1,1 /var/log/load.log | head -n 1 | cut -d' ' -f1 > /home/user/peak.txt
