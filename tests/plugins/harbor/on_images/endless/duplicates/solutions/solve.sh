cd /home/user/inbox || exit
rm b d e
printf 'b\nd\ne\n' > /home/user/deleted.txt
