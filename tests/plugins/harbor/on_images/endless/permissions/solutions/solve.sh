chmod 600 /home/user/keys/*.key
chmod 700 /home/user/keys
