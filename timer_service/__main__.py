from timer_service.cli import main

main()
