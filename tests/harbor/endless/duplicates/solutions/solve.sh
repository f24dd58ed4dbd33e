cd /home/user/inbox
rm b d e
printf 'b\nd\ne\n' > /home/user/deleted.txt
