ln -s /home/user/backups/backup-2024-11-30.tar /home/user/newest
ln -s /home/user/backups/backup-2023-02-01.tar /home/user/oldest
